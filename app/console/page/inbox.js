// What waits for a person or an application: approvals, and results that come from outside.

import {get, post} from './api.js'
import {action, h, idLink, json, moment, status} from './view.js'

export async function inbox() {
  const {data} = await get('/runs', {status: 'waiting', limit: 100})
  const waiting = data.filter((run) => run.pending.length)
  if (!waiting.length) return [h('h1', {}, 'Inbox'), h('p', {className: 'quiet'}, 'Nothing waits for you.')]
  return [h('h1', {}, 'Inbox'), waiting.map((run) => {
    const card = h('article', {className: 'run'},
      h('header', {}, idLink('runs', run.id), ' ', status(run), ' ', moment(run.created_at)),
      questions(run.id, run.pending, () => card.remove()))
    return card
  })]
}

// Approvals of one run are answered together, results one by one.
export function questions(runId, pending, answered) {
  const approvals = pending.filter((call) => call.reason === 'approval')
  const results = pending.filter((call) => call.reason !== 'approval')
  return h('div', {className: 'questions'},
    approvals.length ? decisions(runId, approvals, answered) : null,
    results.map((call) => h('section', {className: 'question'}, h('h4', {}, `${call.tool} waits for its result`),
      result(runId, call, answered), until(call))))
}

const until = (call) => h('p', {className: 'quiet'}, 'until ', moment(call.expires_at))

function decisions(runId, calls, answered) {
  const forms = calls.map((call) => decision(call, calls.length > 1))
  const send = async (choice) => {
    await post(`/runs/${runId}/approvals`, {decisions: forms.map((form) => form.read(choice))})
    answered()
  }
  return h('div', {}, forms.map((form) => form.element), h('div', {className: 'row'}, calls.length > 1
    ? action('Answer', () => send(null), {className: 'main'})
    : [action('Approve', () => send('approve'), {className: 'main'}), action('Reject', () => send('reject'))]))
}

function decision(call, hasChoice) {
  const given = h('textarea', {value: JSON.stringify(call.arguments, null, 2), rows: 5, 'aria-label': 'Arguments'})
  const reason = h('input', {placeholder: 'Reason, if you reject: the model reads it', 'aria-label': 'Reason'})
  const choices = ['approve', 'reject'].map((value) => h('input', {type: 'radio', name: call.call_id, value}))
  const element = h('section', {className: 'question'}, h('h4', {}, `May ${call.tool} be called?`), given, reason,
    hasChoice ? h('div', {className: 'row'}, choices.map((one) => h('label', {}, one, ` ${one.value}`))) : null, until(call))
  const read = (choice) => {
    const chosen = choice ?? choices.find((one) => one.checked)?.value
    if (!chosen) throw new Error('Decide on each of the calls: they are answered together.')
    if (chosen === 'reject') return {call_id: call.call_id, decision: 'reject', ...(reason.value.trim() ? {reason: reason.value.trim()} : {})}
    const edited = parsed(given.value)
    return JSON.stringify(edited) === JSON.stringify(call.arguments)
      ? {call_id: call.call_id, decision: 'approve'} : {call_id: call.call_id, decision: 'edit', arguments: edited}
  }
  return {element, read}
}

function result(runId, call, answered) {
  const given = h('textarea', {value: '{}', rows: 4, 'aria-label': 'Result, as JSON'})
  const send = async () => {
    await post(`/runs/${runId}/tool-results`, {results: [{call_id: call.call_id, result: parsed(given.value)}]})
    answered()
  }
  return [json(call.arguments), given, action('Give this result', send, {className: 'main'})]
}

function parsed(text) {
  try {
    return JSON.parse(text)
  } catch {
    throw new Error('That is no JSON.')
  }
}
