// Rules and memories, and the ones that wait for a person.

import {get, post} from './api.js'
import {pages} from './pages.js'
import {action, h, moment, reference} from './view.js'

export async function memories(_, query) {
  const pending = (await get('/memories', {status: 'pending', limit: 50})).data
  const choose = h('select', {'aria-label': 'Status', onchange: () => { location.hash = `#/memories?status=${choose.value}` }},
    ['active', 'pending', 'all'].map((one) => h('option', {value: one, selected: one === (query.status ?? 'active')}, one)))
  return [
    h('h1', {}, 'Memories'),
    pending.length ? [h('h2', {}, 'To be decided'), pending.map(question)] : null,
    h('div', {className: 'row'}, choose),
    await pages('/memories', {status: query.status ?? 'active'}, ['Note', 'Kind', 'Weight', 'Of', 'About', 'For', 'Confirmed'], (one) => [
      one.content, one.kind, `${one.importance} · ${one.evidence_count}×${one.pinned ? ' · pinned' : ''}`, reference(one.tenant),
      reference(one.subject), reference(one.member), moment(one.last_confirmed_at),
    ], 'No such note.'),
    h('h2', {}, 'Rules'),
    await pages('/rules', {}, ['Rule', 'Of', 'About', 'For', 'State'], (one) => [
      one.content, reference(one.tenant), reference(one.subject), reference(one.member), one.active ? 'active' : 'off',
    ], 'No rule yet.'),
  ]
}

function question(note) {
  const decide = (word) => async () => { await post(`/memories/${note.id}/${word}`); card.remove() }
  const card = h('section', {className: 'question'}, h('p', {className: 'text', dir: 'auto'}, note.content),
    h('p', {className: 'quiet'}, [note.kind, reference(note.tenant), reference(note.subject), reference(note.member), note.reason].filter(Boolean).join(' · ')),
    h('div', {className: 'row'}, action('Keep it', decide('approve'), {className: 'main'}), action('Reject it', decide('reject'))))
  return card
}
