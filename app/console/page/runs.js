// Runs: the list, and one with its trace.

import {get} from './api.js'
import {liveRun} from './live.js'
import {pages} from './pages.js'
import {action, facts, folded, h, idLink, json, moment, number, seconds, status, table} from './view.js'

const STATUSES = ['', 'queued', 'running', 'waiting', 'completed', 'incomplete', 'failed', 'cancelled']

export const runColumns = ['Run', 'Status', 'Model', 'Iterations', 'Calls', 'Tokens', 'Started']
export const runRow = (run) => [
  idLink('runs', run.id), status(run), run.model, run.iterations, run.tool_calls,
  `${number(run.usage.input_tokens)} + ${number(run.usage.output_tokens)}`, moment(run.created_at),
]

export async function runs(_, query) {
  const choose = h('select', {'aria-label': 'Status', onchange: () => {
    location.hash = choose.value ? `#/runs?status=${choose.value}` : '#/runs'
  }}, STATUSES.map((one) => h('option', {value: one, selected: one === (query.status ?? '')}, one || 'any status')))
  const list = await pages('/runs', query, runColumns, runRow, 'No such run.')
  return [h('h1', {}, 'Runs'), h('div', {className: 'row'}, choose), list]
}

export async function run([id], _, signal) {
  const found = await get(`/runs/${id}`)
  const children = await get('/runs', {parent_run_id: id})
  const trace = h('div', {})
  const showTrace = async () => trace.replaceChildren(...(await get(`/runs/${id}/trace`)).iterations.map(traced))
  return [
    h('h1', {}, 'Run'),
    facts([['Id', h('code', {}, id)], ['Session', idLink('sessions', found.session_id)], ['Agent', idLink('agents', found.agent_id)],
      ['Parent', idLink('runs', found.parent_run_id)], ['Model', found.model], ['Asked', moment(found.created_at)],
      ['Started', moment(found.started_at)], ['Ended', moment(found.finished_at)],
      ['Metadata', Object.keys(found.metadata).length ? json(found.metadata) : undefined]]),
    children.data.length ? [h('h2', {}, 'Children'), table(runColumns, children.data.map(runRow), '')] : null,
    h('h2', {}, 'What it did'),
    liveRun(id, signal, showTrace),
    found.output_parsed ? [h('h2', {}, 'Output'), json(found.output_parsed)] : null,
    h('h2', {}, 'Trace'),
    action('Show', showTrace),
    trace,
    h('h2', {}, 'Again'),
    h('p', {}, 'The replies of the model, to play this run again with a scripted one:'), scriptButton(id),
  ]
}

function traced(iteration) {
  return h('section', {}, h('h3', {}, `Iteration ${iteration.iteration}`),
    table(['Model', 'Attempt', 'In', 'Out', 'First token', 'Seconds', 'Finish', 'Error'], iteration.model_calls.map((call) => [
      call.model, call.attempt, number(call.input_tokens), number(call.output_tokens), seconds(call.first_token_seconds),
      seconds(call.seconds), call.finish_reason ?? '', call.error ? json(call.error) : '']), 'No model call.'),
    iteration.tool_calls.map((call) => folded(`${call.tool} · ${call.outcome ?? 'open'} · ${seconds(call.seconds)} · ${call.attempts ?? 0} attempts`,
      facts([['Status', String(call.status ?? '–')], ['Cause', call.cause ?? undefined]]),
      h('h5', {}, 'Arguments'), json(call.arguments), h('h5', {}, 'Result'), json(call.result),
      h('h5', {}, 'As the model saw it'), json(call.content ?? ''))))
}

function scriptButton(id) {
  const place = h('div', {})
  return [action('Show the script', async () => place.replaceChildren(json((await get(`/runs/${id}/script`)).script))), place]
}

