// What Hugging Face's tokenizers make of a text of 1 MB: prose, code, many scripts, emoji, control characters, special
// tokens, 100 KB without a space. The text comes from a generator and is the same every time.
//
//   node scripts/tokenizer_reference.mjs FOLDER NAME
//
// FOLDER is filled by scripts/fetch_tokenizers.sh; the result is FOLDER/NAME/reference.json: an array of
// {text, rust: {ids, ids_with_special (of every tenth), spans (begin, end, begin, end, ... in characters), decoded},
// javascript: {ids, decoded}}. `rust` is absent where the compiled library does not run.
import { createRequire } from 'node:module';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

const [folder, name] = process.argv.slice(2);
const require = createRequire(import.meta.url);
const file = join(folder, name, 'tokenizer.json');
const json = JSON.parse(readFileSync(file, 'utf8'));
const config = JSON.parse(readFileSync(join(folder, name, 'tokenizer_config.json'), 'utf8'));

// Numbers as xorshift gives them, from a fixed beginning.
let state = 0x2545f491;
function below(limit) {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) % limit;
}
const pick = (list) => list[below(list.length)];
function many(count, make) {
  let text = '';
  while (text.length < count) text += make();
  return text;
}

const words = ('the of and to in a is that it was for on are with as his they be at one have this from or had by hot ' +
  'word but what some we can out other were all there when up use your how said an each she which do their time if ' +
  'will way about many then them write would like so these her long make thing see him two has look more day could go ' +
  'come did number sound no most people my over know water than call first who may down side been now find any new ' +
  'work part take get place made live where after back little only round man year came show every good me give our ' +
  'under name very through just form sentence great think say help low line differ turn cause much mean before move ' +
  'right boy old too same tell does set three want air well also play small end put home read hand port large spell ' +
  'add even land here must big high such follow act why ask men change went light kind off need house picture try us ' +
  'again animal point mother world near build self earth father antidisestablishmentarianism naïve café coöperate ' +
  'electroencephalographically internationalization Straße façade jalapeño').split(' ');
function sentence() {
  const length = 4 + below(20);
  let text = '';
  for (let index = 0; index < length; ++index) {
    let word = pick(words);
    if (index === 0) word = word[0].toUpperCase() + word.slice(1);
    if (below(30) === 0) word = word.toUpperCase();
    if (below(12) === 0) word += pick(["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "’s", "n't"]);
    if (below(40) === 0) word = String(below(1000000) / pick([1, 10, 100]));
    if (below(50) === 0) word = '$' + below(1000) + ',' + below(1000) + '.' + below(100);
    text += (index === 0 ? '' : pick([' ', ' ', ' ', ' ', ' ', ', ', '; ', ' - ', ' (', ') ', '  '])) + word;
  }
  return text + pick(['. ', '. ', '! ', '? ', '.\n', '...\n\n', '." ', ':\r\n']);
}
function code() {
  const indent = pick(['', '  ', '    ', '        ', '\t', '\t\t']);
  const variable = () => pick(['x', 'value', 'tmp_1', 'camelCase', 'SNAKE_CASE', '__init__', 'size_t', 'std::vector<int>']);
  return indent + pick([
    () => `for (int i = 0; i < ${below(100)}; ++i) { ${variable()}[i] += ${below(10)}.${below(1000)}f; }`,
    () => `def ${variable()}(self, *args, **kwargs):`,
    () => `if ${variable()} != ${variable()} && !${variable()}->done() {  // ${pick(words)}`,
    () => `<div class="${pick(words)}-${below(9)}">{{ ${variable()} }}</div>`,
    () => `SELECT * FROM ${pick(words)} WHERE id=${below(1e6)} ORDER BY ${variable()} DESC;`,
    () => `${variable()} = {"${pick(words)}": [${below(9)}, ${below(99)}, null], "π": ${Math.PI}}`,
    () => `0x${below(0xffffff).toString(16)} ^ ~0b${below(256).toString(2)} << ${below(64)} % ${variable()};`,
    () => `return ${variable()} === undefined ? \`\${${variable()}}\` : /^[a-z]+\\s*$/gi;`,
    () => '}',
  ])() + pick(['\n', '\n', '\n\n', '\r\n', '   \n']);
}
const blocks = [
  [0xa1, 0xff], [0x100, 0x24f], [0x250, 0x2af], [0x370, 0x3ff], [0x400, 0x52f], [0x531, 0x58a], [0x591, 0x5f4],
  [0x600, 0x6ff], [0x700, 0x74f], [0x780, 0x7b1], [0x900, 0x97f], [0x980, 0x9fe], [0xa01, 0xa75], [0xa81, 0xaff],
  [0xb01, 0xb77], [0xb82, 0xbfa], [0xc00, 0xc7f], [0xc80, 0xcf2], [0xd00, 0xd7f], [0xd81, 0xdf4], [0xe01, 0xe5b],
  [0xe81, 0xedf], [0xf00, 0xfda], [0x1000, 0x109f], [0x10a0, 0x10ff], [0x1100, 0x11ff], [0x1200, 0x139f],
  [0x13a0, 0x13fd], [0x1400, 0x169c], [0x16a0, 0x16f8], [0x1780, 0x17f9], [0x1800, 0x18aa], [0x1e00, 0x1eff],
  [0x1f00, 0x1ffe], [0x2010, 0x205e], [0x2070, 0x209c], [0x20a0, 0x20bf], [0x2100, 0x214f], [0x2150, 0x218b],
  [0x2190, 0x23ff], [0x2460, 0x27bf], [0x2c00, 0x2dff], [0x2e80, 0x2fd5], [0x3001, 0x303f], [0x3041, 0x30ff],
  [0x3105, 0x318e], [0x3200, 0x33ff], [0x3400, 0x4dbf], [0x4e00, 0x9ffc], [0xa000, 0xa48c], [0xa960, 0xa97c],
  [0xac00, 0xd7a3], [0xd7b0, 0xd7fb], [0xf900, 0xfad9], [0xfb00, 0xfb4f], [0xfb50, 0xfbc1], [0xfe70, 0xfefc],
  [0xff01, 0xffee], [0x10330, 0x1034a], [0x10400, 0x1044f], [0x12000, 0x12399], [0x1d100, 0x1d1e8],
  [0x1d400, 0x1d7cb], [0x20000, 0x2a6dd], [0x2f800, 0x2fa1d],
];
function script() {
  const [low, high] = pick(blocks);
  const length = 1 + below(12);
  let text = '';
  for (let index = 0; index < length; ++index) {
    text += String.fromCodePoint(low + below(high - low + 1));
    if (below(12) === 0) text += String.fromCodePoint(0x300 + below(0x70));
  }
  return text + pick([' ', ' ', '', ', ', '。', '\n', String(below(100))]);
}
const common = ['Привет, как дела? ', 'Καλημέρα κόσμε! ', 'नमस्ते दुनिया। ', 'สวัสดีชาวโลก ', '你好，世界！', 'こんにちは世界。', '안녕하세요 세계 ',
  'שלום עולם ', 'مرحبا بالعالم ', 'გამარჯობა ', 'Xin chào thế giới ', 'Ελλάδα ', '한국어 ', 'ﬁne ﬂuﬀ ', 'e\u0301a\u0308\u0323 ',
  'Å Å Å ', '각각 '];
const emoji = ['😀', '👍🏽', '👩‍👩‍👧‍👦', '🏳️‍🌈', '🇩🇪', '1️⃣', '❤️', '🧑🏿‍🚀', '☃', '🫠', '🤷‍♂️', '\u200d', '\ufe0f', '🏴󠁧󠁢󠁥󠁮󠁧󠁿'];
const blanks = [' ', '  ', '   ', '\t', '\n', '\r', '\r\n', '\n\n', '\n \n', ' \n', '\v', '\f', '\u0085', '\u00a0', '\u1680', '\u180e',
  '\u2000', '\u2009', '\u200b', '\u2028', '\u2029', '\u202f', '\u205f', '\u2060', '\u3000', '\ufeff', '▁', '▁▁ '];
const control = () => String.fromCharCode(pick([0, 1, 2, 7, 8, 11, 12, 14, 27, 31, 127, 128, 133, 159, 173]));
const anything = () => String.fromCodePoint(pick([below(0x80), below(0x800), 0xe000 + below(0x2000), 0x10000 + below(0x100000)]));
const special = json.added_tokens.slice(0, 40).map((token) => token.content);

const texts = ['', ' ', '\n', 'a', ' a', 'a ', '  a  b  ', '\u0301', '\ufffd', '<', '<|', '▁'];
const add = (bytes, size, make) => {
  for (let done = 0; done < bytes;) {
    const text = many(size, make);
    texts.push(text);
    done += Buffer.byteLength(text);
  }
};
add(300000, 3000, sentence);
add(200000, 2000, code);
add(120000, 600, script);
add(60000, 1000, () => pick(common));
add(40000, 500, () => pick(emoji) + (below(4) === 0 ? sentence() : ''));
add(60000, 400, () => pick(blanks) + (below(2) === 0 ? pick(words) : below(8) === 0 ? control() : ''));
add(20000, 300, () => control() + (below(3) === 0 ? pick(words) : ''));
add(40000, 400, () => (below(3) === 0 ? pick(special) : '') + pick([pick(blanks), pick(words), pick(common), '<', '|', '>']));
add(40000, 200, anything);
add(40000, 1000, () => pick([sentence, code, script, () => pick(emoji), () => pick(blanks), control])());
texts.push(many(100000, () => pick(words)));
texts.push(many(20000, () => pick(['a', 'b', 'ab', 'Z', 'é'])));

async function rustReference() {
  const { Tokenizer } = require(resolve(folder, 'rust', 'index.js'));
  const tokenizer = Tokenizer.fromFile(file);
  const results = [];
  for (const [index, text] of texts.entries()) {
    const plain = await tokenizer.encode(text, null, { addSpecialTokens: false });
    const whole = index % 10 === 0 ? await tokenizer.encode(text, null, { addSpecialTokens: true }) : null;
    results.push({
      ids: plain.getIds(),
      ...(whole ? { ids_with_special: whole.getIds() } : {}),
      spans: plain.getOffsets().flat(),
      decoded: await tokenizer.decode(plain.getIds(), false),
    });
  }
  return results;
}
async function javascriptReference() {
  const { Tokenizer } = await import('file://' + resolve(folder, 'javascript', 'tokenizers.mjs'));
  const tokenizer = new Tokenizer(json, config);
  return texts.map((text) => {
    const ids = Array.from(tokenizer.encode(text, { add_special_tokens: false }).ids);
    return { ids, decoded: ids.length ? tokenizer.decode(ids, { clean_up_tokenization_spaces: false }) : '' };
  });
}

let rust = null;
try {
  rust = await rustReference();
} catch (error) {
  console.error(`tokenizer_reference: the compiled library does not run here: ${error.message}`);
}
const javascript = await javascriptReference();
const results = texts.map((text, index) => ({
  text, ...(rust ? { rust: rust[index] } : {}), javascript: javascript[index],
}));
const target = join(folder, name, 'reference.json');
writeFileSync(`${target}.${process.pid}`, JSON.stringify(results));
renameSync(`${target}.${process.pid}`, target);
