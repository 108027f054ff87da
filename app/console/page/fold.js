// The events of a run, folded into what a person looks at. Pure: no DOM in here.

export const nothing = () => ({run: null, iterations: [], pending: []})

// Changes `state` and gives the iteration that looks different now, or null where it is the run as a whole.
export function fold(state, event) {
  if (event.type.startsWith('run.')) {
    if (event.run) state.run = event.run
    if (event.type === 'run.waiting') Object.assign(state, {pending: event.pending, run: {...state.run, status: 'waiting'}})
    else if (event.type === 'run.resumed') Object.assign(state, {pending: [], run: {...state.run, status: 'running'}})
    else if (event.type !== 'run.queued' && event.type !== 'run.started') state.pending = []
    return null
  }
  const iteration = iterationOf(state, event)
  switch (event.type) {
    case 'iteration.started':
      iteration.model = event.model
      break
    case 'reasoning.delta':
      iteration.reasoning += event.text
      break
    case 'message.delta':
      iteration.text += event.text
      break
    case 'message.discarded':
      Object.assign(iteration, {text: '', reasoning: '', discarded: iteration.discarded + 1})
      break
    case 'message.completed':
      iteration.text = event.message.content
      break
    case 'tool.invoking':
      callOf(iteration, event).arguments = event.arguments
      break
    case 'tool.invoked':
      Object.assign(callOf(iteration, event), {
        result: event.result, outcome: event.outcome, seconds: event.seconds, attempts: event.attempts, truncated: event.truncated,
      })
      break
    case 'guard.hint':
      callOf(iteration, event).streak = event.streak
      break
    case 'iteration.completed':
      Object.assign(iteration, {finish: event.finish_reason, usage: event.usage, seconds: event.seconds})
  }
  return iteration
}

// What the run has used so far: its children's tokens come with its end.
export function totals(state) {
  const {run, iterations} = state
  const sum = (name) => iterations.reduce((total, one) => total + (one.usage?.[name] ?? 0), 0)
  return {
    iterations: Math.max(run?.iterations ?? 0, iterations.length),
    calls: Math.max(run?.tool_calls ?? 0, iterations.reduce((total, one) => total + one.calls.length, 0)),
    input: Math.max(run?.usage.input_tokens ?? 0, sum('input_tokens')),
    output: Math.max(run?.usage.output_tokens ?? 0, sum('output_tokens')),
  }
}

function iterationOf(state, event) {
  let found = state.iterations.find((one) => one.number === event.iteration)
  if (found === undefined) {
    found = {number: event.iteration, model: '', text: '', reasoning: '', discarded: 0, calls: [], finish: null, usage: null, seconds: null}
    state.iterations.push(found)
  }
  return found
}

function callOf(iteration, event) {
  let found = iteration.calls.find((call) => call.id === event.call_id)
  if (found === undefined) {
    found = {id: event.call_id, tool: event.tool, arguments: null, outcome: null}
    iteration.calls.push(found)
  }
  return found
}
