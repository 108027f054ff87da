// A list of the API as a table that grows page by page.

import {get} from './api.js'
import {action, h, table} from './view.js'

export async function pages(path, query, names, row, empty) {
  const rows = []
  const place = h('div', {})
  async function more(after) {
    const page = await get(path, {...query, limit: 50, after})
    rows.push(...page.data.map(row))
    place.replaceChildren(table(names, rows, empty), page.next ? action('More', () => more(page.next)) : '')
  }
  await more()
  return place
}
