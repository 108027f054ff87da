// Agents: the list, and one with what fired or was skipped.

import {get, patch, post} from './api.js'
import {pages} from './pages.js'
import {runColumns, runRow} from './runs.js'
import {action, facts, h, idLink, json, link, moment, reference} from './view.js'

export async function agents() {
  const list = await pages('/agents', {}, ['Agent', 'Tenant', 'Starts on', 'Next', 'State'], (one) => [
    link(`agents/${one.id}`, one.name), reference(one.tenant), [...one.event_triggers, one.cron].filter(Boolean).join(', ') || 'by hand',
    moment(one.next_at), state(one),
  ], 'No agent yet. A backend makes them with POST /v1/agents.')
  return [h('h1', {}, 'Agents'), list]
}

const state = (agent) => (agent.active ? 'active' : agent.paused_reason ? `paused: ${agent.paused_reason}` : 'off')

export async function agent([id]) {
  const found = await get(`/agents/${id}`)
  const said = h('span', {}, state(found))
  const toggle = action(found.active ? 'Switch off' : 'Switch on', async () => {
    const now = await patch(`/agents/${id}`, {active: !found.active})
    Object.assign(found, now)
    said.textContent = state(now)
    toggle.querySelector('button').textContent = now.active ? 'Switch off' : 'Switch on'
  })
  return [
    h('h1', {}, found.name),
    facts([['Id', h('code', {}, id)], ['Tenant', reference(found.tenant)], ['State', said], ['Model', String(found.model ?? '–')],
      ['Events', found.event_triggers.join(', ') || '–'], ['Cron', found.cron ? `${found.cron} (${found.timezone})` : '–'],
      ['Next', moment(found.next_at)], ['Tools', found.allowed_tools.join(', ') || '–'], ['A day', `${found.max_tasks_per_day} runs at most`]]),
    h('div', {className: 'row'}, toggle),
    h('h2', {}, 'Prompt'), json(found.system_prompt),
    h('h2', {}, 'Start by hand'), startForm(found),
    h('h2', {}, 'Firings'), await pages(`/agents/${id}/firings`, {}, ['When', 'By', 'Came of it', 'About', 'Run'], (one) => [
      moment(one.at), one.event ?? one.kind, [one.outcome, one.reason, one.detail].filter(Boolean).join(': '),
      reference(one.subject ?? one.tenant), idLink('runs', one.run_id),
    ], 'It has not fired yet.'),
    h('h2', {}, 'Runs'), await pages(`/agents/${id}/runs`, {}, runColumns, runRow, 'No run yet.'),
  ]
}

function startForm(found) {
  const input = h('textarea', {rows: 2, placeholder: 'Input (optional)', 'aria-label': 'Input'})
  const tenant = h('input', {placeholder: 'tenant, as TYPE:ID', 'aria-label': 'Tenant'})
  const start = async () => {
    const body = input.value.trim() ? {input: input.value} : {}
    if (!found.tenant) body.tenant = parsedReference(tenant.value)
    const run = await post(`/agents/${found.id}/runs`, body)
    location.hash = `#/runs/${run.id}`
  }
  return h('div', {className: 'asking'}, input, found.tenant ? null : tenant, action('Start', start, {className: 'main'}))
}

function parsedReference(text) {
  const [type, ...id] = text.trim().split(':')
  if (!type || !id.length) throw new Error('A tenant is needed, as TYPE:ID.')
  return {type, id: id.join(':')}
}
