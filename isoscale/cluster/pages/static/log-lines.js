// Lines of one log, in memory: pages come at the end while it grows, and at the beginning while a reader scrolls back.
import { at, get } from "./api.js";

const PAGE = 65_536;
// What a page that follows keeps; older lines are read again when they are wanted.
const KEPT = 50_000;
const encoder = new TextEncoder();
const size = (text) => encoder.encode(text).length;

export class LogLines {
  constructor(base, source) {
    Object.assign(this, { base, source, lines: [], begin: 0, end: 0, size: 0, isTorn: false, isLoaded: false });
  }

  page(offset, limit = PAGE) {
    return get(at(`${this.base}/log`, { source: this.source, offset, limit }));
  }

  // From the last lines on.
  async tail() {
    this.take(await this.page(-PAGE));
  }

  // With the line that begins at `offset` somewhere in it.
  async around(offset) {
    const from = Math.max(0, offset - PAGE / 4);
    const page = await this.page(from);
    const first = from ? page.text.indexOf("\n") + 1 : 0;
    this.take({ ...page, text: page.text.slice(first), offset: from + size(page.text.slice(0, first)) });
    return this.lineAt(offset);
  }

  take(page) {
    Object.assign(this, { lines: [], isTorn: false, begin: page.offset, isLoaded: true });
    this.append(page);
  }

  append(page) {
    const pieces = page.text.split("\n");
    if (this.isTorn && pieces.length) this.lines[this.lines.length - 1] += pieces.shift();
    const last = pieces.pop();
    this.lines.push(...pieces);
    // The last line may not be whole yet: it goes on with the next page.
    if (last === undefined) this.isTorn = false;
    else if (last || (this.isTorn && page.text === "")) this.lines.push(last), (this.isTorn = true);
    else this.isTorn = false;
    [this.end, this.size] = [page.next_offset, page.size];
  }

  // What came since. True if something did.
  async grow({ trim = true } = {}) {
    const page = await this.page(this.end);
    if (page.size < this.end) return await this.tail(), true; // begun anew
    if (!page.text) return (this.size = page.size), false;
    if (this.isTorn && !page.text.includes("\n")) this.lines[this.lines.length - 1] += page.text, ([this.end, this.size] = [page.next_offset, page.size]);
    else this.append(page);
    if (trim && this.lines.length > KEPT) {
      const gone = this.lines.splice(0, this.lines.length - KEPT);
      this.begin += size(`${gone.join("\n")}\n`);
    }
    return true;
  }

  // A page in front. The number of lines that came.
  async older() {
    if (!this.begin) return 0;
    const from = Math.max(0, this.begin - PAGE);
    const page = await this.page(from, this.begin - from);
    const text = from ? page.text.slice(page.text.indexOf("\n") + 1) : page.text;
    const lines = text.split("\n");
    if (lines.at(-1) === "") lines.pop();
    this.lines = lines.concat(this.lines);
    this.begin = from && lines.length ? this.begin - size(`${lines.join("\n")}\n`) : from;
    return lines.length;
  }

  lineAt(offset) {
    let byte = this.begin;
    for (let index = 0; index < this.lines.length; index += 1) {
      if (byte >= offset) return index;
      byte += size(this.lines[index]) + 1;
    }
    return Math.max(0, this.lines.length - 1);
  }
}
