// One conversation. EventSource comes back by itself with the last id it has, so a cut line costs nothing.

const main = document.querySelector('main')
const form = document.querySelector('form')
const ENDS = ['run.completed', 'run.incomplete', 'run.failed', 'run.cancelled']

const known = sessionStorage.getItem('chat')
const chat = await (await fetch('/chat', {method: 'POST', body: JSON.stringify({session: known ?? undefined})})).json()
sessionStorage.setItem('chat', chat.session)

async function ask(method, path, body) {
  const headers = {Authorization: `Bearer ${chat.token}`, 'Content-Type': 'application/json'}
  const answer = await fetch(chat.rondo + path, {method, headers, body: body && JSON.stringify(body)})
  const given = await answer.json()
  if (!answer.ok) throw new Error(given.detail ?? given.title)
  return given
}

function line(kind, text) {
  const shown = document.createElement('p')
  shown.className = kind
  shown.textContent = text
  main.append(shown)
  shown.scrollIntoView()
  return shown
}

function follow(runId) {
  const lines = new Map()
  const source = new EventSource(`${chat.rondo}/runs/${runId}/events?access_token=${encodeURIComponent(chat.token)}`)
  const on = (type, take) => source.addEventListener(type, (event) => take(JSON.parse(event.data)))
  const message = (id) => lines.get(id) ?? lines.set(id, line('assistant', '')).get(id)
  on('message.delta', (event) => { message(event.message_id).textContent += event.text })
  on('message.discarded', (event) => { message(event.message_id).textContent = '' })
  on('message.completed', (event) => { if (event.message.content) message(event.message.id).textContent = event.message.content })
  on('tool.invoking', (event) => line('doing', `${event.tool} …`))
  for (const type of ENDS) {
    on(type, (event) => {
      source.close()
      form.said.disabled = false
      if (event.run.status !== 'completed') line('doing', `The run ended as ${event.run.status}: ${event.run.finish_reason}.`)
    })
  }
}

form.addEventListener('submit', async (event) => {
  event.preventDefault()
  const said = form.said.value
  form.reset()
  form.said.disabled = true
  line('user', said)
  try {
    follow((await ask('POST', `/sessions/${chat.session}/runs`, {input: said, background: true})).id)
  } catch (error) {
    form.said.disabled = false
    line('doing', error.message)
  }
})

// what was said before, and a run that is still under way
const runs = (await ask('GET', `/runs?session_id=${chat.session}&limit=1`)).data
const active = runs.find((run) => ['queued', 'running', 'waiting'].includes(run.status))
for (const one of (await ask('GET', `/sessions/${chat.session}/messages?limit=200`)).data) {
  if (one.role === 'tool' || !one.content || (one.run_id === active?.id && one.role !== 'user')) continue
  line(one.role, one.content)
}
if (active) follow(active.id)
else form.said.disabled = false
