// Text of strangers, made visible: control characters, escape sequences and marks that turn text around are shown as
// symbols, never obeyed. What it returns is for textContent.

const BIDI = /[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ufeff]/g;
// All but tab: escape is ␛, carriage return ␍, delete ␡; C1 controls by their number.
const CONTROL = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f]/g;

export function visible(text) {
  return text
    .replace(CONTROL, (letter) => {
      const code = letter.charCodeAt(0);
      if (code < 0x20) return String.fromCharCode(0x2400 + code);
      return code === 0x7f ? "\u2421" : `\u27e8${code.toString(16).padStart(4, "0")}\u27e9`;
    })
    .replace(BIDI, (letter) => `\u27e8${letter.charCodeAt(0).toString(16).padStart(4, "0")}\u27e9`);
}
