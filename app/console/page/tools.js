// Tools: the list, and one to be tried by hand.

import {get, post} from './api.js'
import {pages} from './pages.js'
import {action, facts, h, json, link} from './view.js'

export async function tools() {
  const list = await pages('/tools', {}, ['Tool', 'Kind', 'What it does', 'State'], (one) => [
    link(`tools/${one.name}`, one.name), one.kind, one.description,
    [one.active ? 'active' : 'off', one.requires_approval ? 'asks first' : '', one.at_most_once ? 'at most once' : ''].filter(Boolean).join(', '),
  ], 'No tool yet. A backend registers them with PUT /v1/tools/NAME.')
  return [h('h1', {}, 'Tools'), list]
}

export async function tool([name]) {
  const found = await get(`/tools/${encodeURIComponent(name)}`)
  return [
    h('h1', {}, found.name), h('p', {}, found.description),
    facts([['Kind', found.kind], ['URL', found.url ?? undefined], ['Time-out', `${found.timeout_seconds} s`],
      ['Approval', found.requires_approval ? 'asked for' : 'not asked for'], ['At most once', found.at_most_once ? 'yes' : 'no'],
      ['State', found.active ? 'active' : 'off']]),
    h('h2', {}, 'Arguments'), json(found.parameters),
    found.kind === 'webhook' ? [h('h2', {}, 'Try it'), trial(found)] : null,
  ]
}

function trial(found) {
  const given = h('textarea', {rows: 4, value: '{}', 'aria-label': 'Arguments, as JSON'})
  const context = h('textarea', {rows: 2, value: '{}', 'aria-label': 'Context, as JSON'})
  const place = h('div', {'aria-live': 'polite'})
  const call = async () => {
    const body = {arguments: JSON.parse(given.value), context: JSON.parse(context.value)}
    const shown = await post(`/tools/${encodeURIComponent(found.name)}/test`, body)
    place.replaceChildren(h('p', {}, `Outcome: ${shown.outcome}`), h('h5', {}, 'Request'), json(shown.request),
      h('h5', {}, 'Answer'), json(shown.response), h('h5', {}, 'Result'), json(shown.result))
  }
  return h('div', {className: 'asking'}, h('label', {}, 'Arguments', given), h('label', {}, 'Context', context),
    action('Call it', call, {className: 'main'}), place)
}
