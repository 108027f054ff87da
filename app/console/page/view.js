// Elements and how things are written for people. Text of others only ever becomes text nodes.

export function h(tag, properties, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
    else if (name in element && name !== 'list') element[name] = value
    else element.setAttribute(name, value)
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false))
  return element
}

export const link = (place, ...children) => h('a', {href: `#/${place}`}, ...children)

export function idLink(kind, id) {
  return id ? link(`${kind}/${id}`, h('code', {title: id}, `${id.split('_')[0]} ${id.slice(-6)}`)) : h('span', {className: 'quiet'}, '–')
}

export const reference = (value) => (value ? `${value.type}:${value.id}` : '–')

export function moment(text) {
  if (!text) return h('span', {className: 'quiet'}, '–')
  const shown = new Date(text).toLocaleString(undefined, {dateStyle: 'medium', timeStyle: 'medium'})
  return h('time', {dateTime: text, title: text}, shown)
}

export const seconds = (value) => (value === null || value === undefined ? '–' : `${value.toFixed(value < 10 ? 2 : 0)} s`)
export const number = (value) => (value ?? 0).toLocaleString()

const ENDS = {
  completed: 'completed', waiting: 'waits for an answer', running: 'running', queued: 'queued', cancelled: 'cancelled',
  failed: 'failed', incomplete: 'ended incomplete',
}

export function status(run) {
  const reason = run.status === 'incomplete' ? `: ${run.finish_reason}` : run.status === 'failed' ? `: ${run.error?.code}` : ''
  return h('span', {className: `status ${run.status}`}, `${ENDS[run.status] ?? run.status}${reason}`)
}

export function json(value) {
  return h('pre', {}, typeof value === 'string' ? value : JSON.stringify(value, null, 2))
}

export function folded(title, ...children) {
  return h('details', {}, h('summary', {}, title), ...children)
}

export function table(names, rows, empty) {
  if (!rows.length) return h('p', {className: 'quiet'}, empty)
  return h('div', {className: 'wide'}, h('table', {},
    h('thead', {}, h('tr', {}, names.map((name) => h('th', {scope: 'col'}, name)))),
    h('tbody', {}, rows.map((row) => h('tr', {}, row.map((cell) => h('td', {}, cell)))))))
}

export function facts(pairs) {
  return h('dl', {}, pairs.filter(([, value]) => value !== undefined).map(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]))
}

export function trouble(error) {
  const code = error.code ? ` (${error.code})` : ''
  return h('p', {className: 'trouble', role: 'alert'}, `${error.message}${code}`, (error.errors ?? []).map((one) =>
    h('span', {}, h('br'), `${one.loc.join('.')}: ${one.msg}`)))
}

// A button that works once at a time, and tells beside it what went wrong.
export function action(title, work, properties) {
  const said = h('span', {role: 'status'})
  const button = h('button', {type: 'button', ...properties, onclick: async () => {
    button.disabled = true
    said.replaceChildren()
    try {
      await work()
    } catch (error) {
      said.replaceChildren(trouble(error))
    } finally {
      button.disabled = false
    }
  }}, title)
  return h('span', {className: 'action'}, button, said)
}
