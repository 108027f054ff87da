// The API of this service. The key stays in this tab and goes nowhere but into the Authorization header.

import {events} from './sse.js'

const KEY = 'rondo-key'

export const key = () => sessionStorage.getItem(KEY) ?? ''
export const keepKey = (value) => sessionStorage.setItem(KEY, value)
export const dropKey = () => sessionStorage.removeItem(KEY)

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The service answered ${status}.`)
    Object.assign(this, {status, code: problem.code, errors: problem.errors})
  }
}

export async function ask(method, path, body, headers) {
  let response
  try {
    response = await fetch(`/v1${path}`, {
      method,
      headers: {Authorization: `Bearer ${key()}`, ...(body === undefined ? {} : {'Content-Type': 'application/json'}), ...headers},
      body: body === undefined ? undefined : JSON.stringify(body),
    })
  } catch {
    throw new Refused(0, {detail: 'The service does not answer.'})
  }
  if (response.ok) return response
  const problem = await response.json().catch(() => ({}))
  if (response.status === 401) window.dispatchEvent(new Event('signed-out'))
  throw new Refused(response.status, problem)
}

export async function get(path, query) {
  const named = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== '')
  const text = new URLSearchParams(named).toString()
  return (await ask('GET', text ? `${path}?${text}` : path)).json()
}

export async function post(path, body) {
  const response = await ask('POST', path, body ?? {}, {'Idempotency-Key': crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`})
  return response.status === 204 ? null : response.json()
}

export const patch = async (path, body) => (await ask('PATCH', path, body)).json()

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds))

// Every event of a run to its end, over as many connections as it takes; `signal` ends it.
export async function follow(runId, take, signal) {
  let last = 0, failures = 0
  while (!signal.aborted) {
    try {
      const response = await fetch(`/v1/runs/${runId}/events`, {
        headers: {Authorization: `Bearer ${key()}`, ...(last ? {'Last-Event-ID': String(last)} : {})}, signal,
      })
      if (response.status === 204) return
      if (!response.ok) throw new Refused(response.status, await response.json().catch(() => ({})))
      for await (const frame of events(response.body)) {
        if (frame.id) last = Number(frame.id)
        failures = 0
        const event = JSON.parse(frame.data)
        take(event)
        if (['run.completed', 'run.incomplete', 'run.failed', 'run.cancelled'].includes(event.type)) return
      }
    } catch (error) {
      if (signal.aborted) return
      if (error instanceof Refused && error.status < 500 && error.status !== 429) throw error
    }
    await pause(Math.min(250 * 2 ** failures++, 8000))
  }
}
