// Server-sent events from a stream of bytes, however these are cut. No DOM in here.

export async function* events(body) {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ''
  try {
    for (;;) {
      const {value, done} = await reader.read()
      rest += decoder.decode(value, {stream: !done})
      const blocks = rest.split('\n\n')
      rest = blocks.pop()
      for (const block of blocks) {
        const frame = parsed(block)
        if (frame !== null) yield frame
      }
      if (done) return
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}

function parsed(block) {
  const frame = {id: null, data: null}
  for (const line of block.split('\n')) {
    if (line.startsWith('id: ')) frame.id = line.slice(4)
    else if (line.startsWith('data: ')) frame.data = line.slice(6)
  }
  return frame.data === null ? null : frame
}
