// Sessions: the list, and one as a conversation that can be gone on with.

import {get, post} from './api.js'
import {liveRun} from './live.js'
import {pages} from './pages.js'
import {action, facts, folded, h, idLink, json, link, moment, reference, status} from './view.js'

export async function sessions(_, query) {
  const filter = h('input', {placeholder: 'tenant, as TYPE:ID', value: query.tenant ?? '', 'aria-label': 'Tenant'})
  const form = h('form', {className: 'row', onsubmit: (event) => {
    event.preventDefault()
    location.hash = filter.value.trim() ? `#/sessions?tenant=${encodeURIComponent(filter.value.trim())}` : '#/sessions'
  }}, filter, h('button', {}, 'Filter'))
  const list = await pages('/sessions', {tenant: query.tenant}, ['Session', 'Title', 'Tenant', 'Subject', 'Member', 'Used'], (one) => [
    idLink('sessions', one.id), one.title ?? '', reference(one.tenant), reference(one.subject), reference(one.member), moment(one.updated_at),
  ], 'No session yet. A backend opens them with POST /v1/sessions.')
  return [h('h1', {}, 'Sessions'), form, list]
}

export async function session([id], query, signal) {
  const found = await get(`/sessions/${id}`)
  const talk = h('div', {className: 'talk'})
  const runs = await get('/runs', {session_id: id, limit: 20})
  const active = runs.data.find((run) => ['queued', 'running', 'waiting'].includes(run.status))
  await conversation(id, talk, active?.id)
  const goOn = (runId) => talk.append(liveRun(runId, signal, () => {}))
  if (active) goOn(active.id)
  return [
    h('h1', {}, found.title ?? 'Session'),
    facts([['Id', h('code', {}, id)], ['Tenant', reference(found.tenant)], ['Subject', reference(found.subject)],
      ['Member', reference(found.member)], ['Model', String(found.model ?? '–')], ['Agent', idLink('agents', found.agent_id)]]),
    folded('What the model would be sent', promptButton(id)),
    folded(`Runs (${runs.data.length}${runs.next ? ' and more' : ''})`, runs.data.map((run) =>
      h('p', {}, idLink('runs', run.id), ' ', status(run), ' ', moment(run.created_at)))),
    talk,
    asking(id, found, talk, goOn),
  ]
}

async function conversation(id, talk, liveRunId) {
  let after = null
  do {
    const page = await get(`/sessions/${id}/messages`, {limit: 200, after})
    for (const message of page.data) {
      if (message.run_id !== null && message.run_id === liveRunId && message.role !== 'user') continue
      talk.append(messageShown(message))
    }
    after = page.next
  } while (after)
}

function messageShown(message) {
  const text = typeof message.content === 'string' ? message.content
    : message.content.map((part) => (part.type === 'text' ? part.text : '[image]')).join('')
  if (message.role === 'tool') return folded('Result', json(text))
  return h('section', {className: `message ${message.role}`}, text ? h('p', {className: 'text', dir: 'auto'}, text) : null,
    message.tool_calls.map((call) => h('p', {className: 'quiet'}, 'called ', link(`runs/${message.run_id}`, call.name))))
}

function asking(id, found, talk, goOn) {
  const input = h('textarea', {rows: 3, placeholder: 'Say something', 'aria-label': 'Input'})
  const script = h('textarea', {rows: 3, 'aria-label': 'Script', placeholder: '["Hello.", {"tool_calls": [{"name": "…", "arguments": {}}]}]'})
  const isScripted = String(found.model ?? '').startsWith('scripted/')
  const send = async () => {
    if (!input.value.trim()) throw new Error('There is nothing to send.')
    const body = {input: input.value, background: true}
    if (isScripted && script.value.trim()) body.script = JSON.parse(script.value)
    const run = await post(`/sessions/${id}/runs`, body)
    talk.append(h('section', {className: 'message user'}, h('p', {className: 'text', dir: 'auto'}, input.value)))
    input.value = ''
    goOn(run.id)
  }
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) sending.querySelector('button').click()
  })
  const sending = action('Send', send, {className: 'main', title: 'Ctrl+Enter'})
  return h('div', {className: 'asking'}, input, isScripted ? folded('Script of the model', script) : null, sending)
}

function promptButton(id) {
  const place = h('div', {})
  const input = h('input', {placeholder: 'Input of the next turn', 'aria-label': 'Input of the next turn'})
  const show = async () => {
    const prompt = await get(`/sessions/${id}/prompt`, {input: input.value})
    place.replaceChildren(h('p', {}, `${prompt.tokens} tokens`), ...prompt.parts.map((part) =>
      folded(`${part.kind} · ${part.tokens}`, json(part.content))))
  }
  return h('div', {}, h('div', {className: 'row'}, input, action('Show', show)), place)
}

