// A run as it goes: its iterations with text, reasoning and calls, and what it waits for.

import {follow, post} from './api.js'
import {fold, nothing, totals} from './fold.js'
import {questions} from './inbox.js'
import {action, folded, h, idLink, json, number, seconds, status, trouble} from './view.js'

const ACTIVE = ['queued', 'running', 'waiting']

// An element that follows the run until it ends or `signal` says so; `ended` is told once.
export function liveRun(runId, signal, ended) {
  const state = nothing()
  const head = h('header', {})
  const body = h('div', {className: 'iterations', 'aria-live': 'polite'})
  const place = h('div', {})
  const foot = h('footer', {})
  const shown = new Map()
  const dirty = new Set()

  function paint() {
    for (const iteration of dirty) {
      const element = iterationShown(iteration)
      const before = shown.get(iteration.number)
      keepOpen(before, element)
      if (before) before.replaceWith(element)
      else body.append(element)
      shown.set(iteration.number, element)
    }
    dirty.clear()
    if (state.run === null) return
    head.replaceChildren(idLink('runs', runId), ' ', status(state.run), ' ', spent(state),
      ACTIVE.includes(state.run.status) ? action('Stop', () => post(`/runs/${runId}/cancel`)) : '')
    paintQuestions()
    foot.replaceChildren(state.run.error ? trouble(Object.assign(new Error(state.run.error.message), {code: state.run.error.code})) : '')
  }

  let asked = null
  function paintQuestions() {
    if (asked === state.pending) return  // what somebody is writing there stays
    asked = state.pending
    place.replaceChildren(...(asked.length ? [questions(runId, asked, () => {})] : []))
  }

  let frame = 0
  const later = () => { frame ||= requestAnimationFrame(() => { frame = 0; paint() }) }
  follow(runId, (event) => {
    const iteration = fold(state, event)
    if (iteration !== null) dirty.add(iteration)
    later()
  }, signal).then(() => {
    paint()
    if (!signal.aborted) ended?.(state.run)
  }, (error) => foot.replaceChildren(trouble(error)))
  return h('article', {className: 'run'}, head, body, place, foot)
}

function keepOpen(before, after) {
  const open = [...(before?.querySelectorAll('details') ?? [])].map((one) => one.open)
  for (const [index, element] of [...after.querySelectorAll('details')].entries()) element.open = open[index] ?? false
}

function spent(state) {
  const {iterations, calls, input, output} = totals(state)
  return h('span', {className: 'quiet'}, `${iterations} iterations, ${calls} calls, ${number(input)} + ${number(output)} tokens`)
}

function iterationShown(iteration) {
  const told = [`${iteration.number}`, iteration.model, iteration.finish, iteration.seconds === null ? null : seconds(iteration.seconds)]
  return h('section', {className: 'iteration'},
    h('h4', {}, told.filter(Boolean).join(' · '), iteration.discarded ? ` · begun anew ${iteration.discarded}×` : ''),
    iteration.reasoning ? folded('Reasoning', h('p', {className: 'text quiet'}, iteration.reasoning)) : null,
    iteration.text ? h('p', {className: 'text', dir: 'auto'}, iteration.text) : null,
    iteration.calls.map(callShown))
}

export function callShown(call) {
  const told = [call.tool, call.outcome ?? 'open', call.seconds === undefined ? null : seconds(call.seconds)]
  return h('details', {className: `call ${call.outcome ?? 'open'}`},
    h('summary', {}, told.filter(Boolean).join(' · '), call.streak ? ` · hint: ${call.streak} in vain` : ''),
    h('h5', {}, 'Arguments'), json(call.arguments),
    call.outcome ? [h('h5', {}, call.truncated ? 'Result (the model saw less)' : 'Result'), json(call.result)] : null)
}
