// The page as a whole: who is signed in, which view the address names, and the one that is shown.

import {agent, agents} from './agents.js'
import {dropKey, get, keepKey, key} from './api.js'
import {inbox} from './inbox.js'
import {memories} from './memories.js'
import {run, runs} from './runs.js'
import {session, sessions} from './sessions.js'
import {tool, tools} from './tools.js'
import {usage} from './usage.js'
import {h, link, trouble} from './view.js'

const VIEWS = {sessions: [sessions, session], inbox: [inbox], runs: [runs, run], agents: [agents, agent], tools: [tools, tool], memories: [memories], usage: [usage]}

const main = h('main', {tabIndex: -1})
const nav = h('nav', {'aria-label': 'Views'})
let leaving = new AbortController()

function signIn(said) {
  const given = h('input', {type: 'password', autocomplete: 'off', required: true, id: 'key'})
  const place = h('div', {})
  const form = h('form', {className: 'sign-in', onsubmit: async (event) => {
    event.preventDefault()
    keepKey(given.value.trim())
    try {
      await get('/sessions', {limit: 1})
      start()
    } catch (error) {
      dropKey()
      place.replaceChildren(trouble(error))
    }
  }}, h('h1', {}, 'Rondo'), h('p', {className: 'quiet'}, said), h('label', {htmlFor: 'key'}, 'Service key'), given,
    h('p', {className: 'quiet'}, 'It stays in this tab and is forgotten with it.'), h('button', {className: 'main'}, 'Sign in'), place)
  leaving.abort()
  document.body.replaceChildren(form)
  given.focus()
}

function start() {
  document.body.replaceChildren(nav, main)
  show()
}

async function show() {
  if (!key()) return signIn('What your agents do, and what waits for you.')
  leaving.abort()
  const mine = (leaving = new AbortController())
  const [path, query] = location.hash.slice(2).split('?')
  const [name, ...rest] = (path || 'sessions').split('/').map(decodeURIComponent)
  const view = VIEWS[name]?.[rest.length]
  paintNav(name)
  document.title = `${name} · Rondo`
  if (!view) return main.replaceChildren(h('p', {}, 'There is no such view.'))
  main.setAttribute('aria-busy', 'true')
  let shown
  try {
    shown = await view(rest, Object.fromEntries(new URLSearchParams(query ?? '')), mine.signal)
  } catch (error) {
    shown = [trouble(error)]
  }
  if (mine.signal.aborted) return undefined
  main.removeAttribute('aria-busy')
  main.replaceChildren(...shown.flat(Infinity).filter(Boolean))
  main.focus({preventScroll: true})
  scrollTo(0, 0)
  return undefined
}

function paintNav(current) {
  nav.replaceChildren(h('strong', {}, 'Rondo'), ...Object.keys(VIEWS).map((name) => {
    const item = link(name, name[0].toUpperCase() + name.slice(1))
    if (name === current) item.setAttribute('aria-current', 'page')
    return item
  }), h('button', {type: 'button', onclick: () => { dropKey(); signIn('Signed out.') }}, 'Sign out'))
}

window.addEventListener('hashchange', show)
window.addEventListener('signed-out', () => { if (nav.isConnected) { dropKey(); signIn('That key is not good any more.') } })
if (key()) start()
else show()
