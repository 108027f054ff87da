// What was spent in the last thirty days, and what models get wrong.

import {get} from './api.js'
import {pages} from './pages.js'
import {h, number, table} from './view.js'

export async function usage() {
  const from = new Date(Date.now() - 30 * 86_400_000).toISOString().slice(0, 10)
  const by = async (group, name, shown) => {
    const {data} = await get('/usage', {from, group_by: group, limit: 200})
    return [h('h2', {}, `By ${group}`), table([name, 'Model calls', 'Input', 'of it cached', 'Output', 'of it reasoning', 'Cost'],
      data.map((one) => [shown(one), number(one.calls), number(one.input_tokens), number(one.cached_tokens),
        number(one.output_tokens), number(one.reasoning_tokens), one.cost === null || one.cost === undefined ? '–' : String(one.cost)]),
      'Nothing was spent.')]
  }
  return [
    h('h1', {}, 'Usage, last 30 days'),
    await by('model', 'Model', (one) => one.model),
    await by('tenant', 'Tenant', (one) => (one.tenant ? `${one.tenant.type}:${one.tenant.id}` : '–')),
    await by('day', 'Day', (one) => one.day),
    h('h2', {}, 'What models get wrong'),
    await pages('/insights', {by: 'tool,model', from}, ['Tool', 'Model', 'Calls', 'Invalid', 'Unknown', 'Failed', 'Empty', 'Hints', 'Beyond the cap'],
      (one) => [one.tool, one.model, ...['calls', 'invalid', 'unknown', 'failed', 'empty', 'hints', 'skipped'].map((name) => number(one[name]))],
      'No call yet.'),
  ]
}
