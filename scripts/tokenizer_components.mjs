// Writes tests/data/tokenizers/components.json: small tokenizers, one for each part that a tokenizer.json may have, and
// what Hugging Face's library (fetched by scripts/fetch_tokenizers.sh) makes of some texts with them.
//
//   node scripts/tokenizer_components.mjs build/tokenizers tests/data/tokenizers/components.json
//
// {"models": {name: model}, "texts": [...], "cases": [{name, model, parts, ids: [of each text], decoded: [...]}]}; a case's
// tokenizer.json is {"model": models[model], ...parts}.
import { createRequire } from 'node:module';
import { writeFileSync } from 'node:fs';
import { resolve } from 'node:path';

const [folder, target] = process.argv.slice(2);
const { Tokenizer } = createRequire(import.meta.url)(resolve(folder, 'rust', 'index.js'));

const texts = [
  '', ' ', 'Hello world', "  It's  2026-11-29;\tthey'LL pay $1,234.5!\n\n ", 'naïve café – œuvre “quotes” … ½ ① ²',
  'e\u0301a\u0323\u0308 \u0301x Å ﬁ ｆｕｌｌ 각 각 \u0344', 'İstanbul ΑΣ ẞ Straße ſ K', 'a\u00a0b\u3000c\u2028d\u0085e\u180ef\u200bg\ufeffh',
  '你好，世界。こんにちは カタカナ 한국어', '👍🏽 👩‍👩‍👧 🇩🇪 🫨', '--a--b- -', '<s>a <mask> b</s><mask>  <pad>x<pad>-x <Norm>é <norm>É tok toks',
  'a_b __init__ x1y2 ٣४ Ⅷ', '\u0000\u0007a\u007f', '▁a▁▁b ▁', 'aaabbbab abab ba', 'foo.bar(baz)[0] != {"k": -1}', '\r\n \r\n\tx', '  <s>  x  ',
  '\u{31350}a\u{2ebf0}', 'ౌ఼\u0315\u0301',
];

// Every character is a token of its own, and another one at the end of a piece: ids show where pieces end.
const characters = new Set();
for (const text of texts) for (const form of [undefined, 'NFC', 'NFD', 'NFKC', 'NFKD']) {
  for (const character of form ? text.normalize(form) : text) for (const one of [character, ...character.toLowerCase()]) characters.add(one);
}
for (const byte of Tokenizer.fromString(JSON.stringify({
  version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: { type: 'ByteLevel' }, pre_tokenizer: null,
  post_processor: null, decoder: null, model: { type: 'BPE', vocab: {}, merges: [] },
})).getNormalizer().normalizeString(texts.join(''))) characters.add(byte);
for (let code = 32; code < 127; ++code) characters.add(String.fromCharCode(code));
const sorted = [...characters].filter((one) => one.isWellFormed()).sort((a, b) => a.codePointAt(0) - b.codePointAt(0));
const ends = { type: 'BPE', dropout: null, unk_token: '<unk>', continuing_subword_prefix: null, end_of_word_suffix: '</w>',
  fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab: {}, merges: [] };
['<unk>', ...sorted, ...sorted.map((one) => one + '</w>')].forEach((token, id) => { ends.vocab[token] = id; });
const byte = (value) => `<0x${value.toString(16).toUpperCase().padStart(2, '0')}>`;
const small = (options, more = []) => {
  const vocab = {};
  ['<unk>', 'a', 'b', 'c', ' ', '▁', 'ab', 'aa', 'aab', 'ba', 'abab', 'aaabbbab', ...more].forEach((token, id) => { vocab[token] = id; });
  return { ...ends, end_of_word_suffix: null, vocab, merges: [['a', 'b'], ['a', 'a'], ['aa', 'b'], ['b', 'a'], ['ab', 'ab']], ...options };
};
const bytes = Array.from({ length: 256 }, (_, value) => byte(value));
const models = {
  ends,
  plain: small({}),
  merge_texts: small({ merges: ['#version: 0.2', 'a b', 'a a', 'aa b', 'b a', 'ab ab'] }),
  fuse: small({ fuse_unk: true }),
  no_unknown: small({ unk_token: null }),
  bytes: small({ byte_fallback: true }, bytes),
  some_bytes: small({ byte_fallback: true, fuse_unk: true }, bytes.slice(0, 0xc0)),
  ignore: small({ ignore_merges: true }),
  prefix: small({ continuing_subword_prefix: '##', merges: [['a', '##b'], ['ab', '##a']] }, ['##a', '##b', 'aba']),
  old: (({ type, ...rest }) => rest)(small({})),
};

const cases = [];
const add = (name, parts, model = 'ends') => cases.push({ name, model, parts });
const normalizer = (name, value) => add(`normalizer ${name}`, { normalizer: value });
for (const type of ['NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'StripAccents', 'Nmt', 'ByteLevel']) normalizer(type, { type });
for (const left of [true, false]) for (const right of [true, false]) {
  normalizer(`Strip ${left} ${right}`, { type: 'Strip', strip_left: left, strip_right: right });
}
normalizer('Prepend', { type: 'Prepend', prepend: '▁' });
normalizer('Replace string', { type: 'Replace', pattern: { String: 'a' }, content: 'bb' });
normalizer('Replace nothing', { type: 'Replace', pattern: { String: ' ' }, content: '' });
normalizer('Replace regex', { type: 'Replace', pattern: { Regex: '\\s+' }, content: '▁' });
normalizer('Replace empty matches', { type: 'Replace', pattern: { Regex: 'x*' }, content: '-' });
normalizer('Sequence', { type: 'Sequence', normalizers: [{ type: 'NFD' }, { type: 'StripAccents' }, { type: 'Lowercase' },
  { type: 'Strip', strip_left: true, strip_right: true }, { type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }] });

const before = (name, value) => add(`pre-tokenizer ${name}`, { pre_tokenizer: value });
const behaviors = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'];
for (const behavior of behaviors) for (const invert of [false, true]) {
  before(`Split string ${behavior} ${invert}`, { type: 'Split', pattern: { String: '-' }, behavior, invert });
  before(`Split regex ${behavior} ${invert}`, { type: 'Split', pattern: { Regex: '\\s+|[ab]' }, behavior, invert });
  before(`Split empty matches ${behavior} ${invert}`, { type: 'Split', pattern: { Regex: 'a*' }, behavior, invert });
}
const expressions = [
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  '[一-龥\u3040-ゟ゠-ヿ]+', '\\p{Han}+', '[\\p{L}&&[^\\p{Han}]]+', '[[a-c][x-z]]', '[^[a-c]\\s]', '\\w+', '\\W+', '[\\W&&\\S]', '[^\\W_]+', '\\d', '\\D+',
  '\\h', '\\H+', '[\\h-]', '^.', '.$', '\\A.', '.\\z', '(?m:.+)', '(?m).+', '(?i)[k-s]', '(?i:k)', 'a{,2}', 'a{2,}?', 'b{1}', '{a', '[[:alpha:]]+', '[[:^alpha:]]+',
  '[[:punct:]]', '\\p{^L}', '\\P{L}', '\\p{Letter}', '\\p{Upper}', '\\bx|a\\b', '\\B.', '(?<=a)b', '(?<!a)b', '(?>a+)b', '(a)\\x{62}|\\u0061', '\\R', '\\p{Punct}+', '\\v', '\\p{Katakana}+|\\p{Greek}+', '[^\\x00-\\x7F]+', '\\p{S}',
];
for (const expression of expressions) {
  before(`expression ${expression}`, { type: 'Split', pattern: { Regex: expression }, behavior: 'Isolated', invert: false });
}
for (const prefix of [true, false]) for (const regex of [true, false]) {
  before(`ByteLevel ${prefix} ${regex}`, { type: 'ByteLevel', add_prefix_space: prefix, trim_offsets: true, use_regex: regex });
}
for (const scheme of ['always', 'first', 'never']) for (const split of [true, false]) {
  before(`Metaspace ${scheme} ${split}`, { type: 'Metaspace', replacement: '▁', prepend_scheme: scheme, split });
}
before('Metaspace old true', { type: 'Metaspace', replacement: '▁', add_prefix_space: true });
before('Digits alone', { type: 'Digits', individual_digits: true });
before('Digits', { type: 'Digits', individual_digits: false });
for (const behavior of behaviors) before(`Punctuation ${behavior}`, { type: 'Punctuation', behavior });
for (const type of ['Whitespace', 'WhitespaceSplit', 'BertPreTokenizer']) before(type, { type });
before('CharDelimiterSplit', { type: 'CharDelimiterSplit', delimiter: '-' });
before('Sequence', { type: 'Sequence', pretokenizers: [
  { type: 'Split', pattern: { Regex: '\\p{N}{1,3}' }, behavior: 'Isolated', invert: false },
  { type: 'Sequence', pretokenizers: [{ type: 'Digits', individual_digits: true }, { type: 'Punctuation', behavior: 'Isolated' }] },
  { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: true }] });
before('bytes within', { type: 'Sequence', pretokenizers: [{ type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true },
  { type: 'Split', pattern: { String: 'Ġ' }, behavior: 'Isolated', invert: false }] });

const decoder = (name, value, model = 'bytes', more = {}) => add(`decoder ${name}`, { decoder: value, ...more }, model);
const fallback = [{ type: 'ByteFallback' }, { type: 'Fuse' }];
decoder('none', null);
decoder('ByteLevel', { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true });
decoder('Metaspace always', { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true });
decoder('Metaspace never', { type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: true });
decoder('ByteFallback', { type: 'ByteFallback' });
decoder('Fuse', { type: 'Fuse' });
decoder('Strip left', { type: 'Strip', content: 'a', start: 2, stop: 0 });
decoder('Strip right', { type: 'Strip', content: 'a', start: 0, stop: 1 });
decoder('Replace', { type: 'Replace', pattern: { String: 'a' }, content: 'xy' });
decoder('Replace regex', { type: 'Replace', pattern: { Regex: '[ab]+' }, content: '-' });
decoder('BPEDecoder', { type: 'BPEDecoder', suffix: '</w>' }, 'ends', { pre_tokenizer: { type: 'Whitespace' } });
decoder('Llama', { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '▁' }, content: ' ' }, ...fallback, { type: 'Strip', content: ' ', start: 1, stop: 0 }] });
decoder('some bytes', { type: 'Sequence', decoders: fallback }, 'some_bytes');

let id = 5000;
const token = (content, options = {}) => ({ id: id++, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...options });
const added = (name, tokens, more = {}, model = 'ends') => add(`added ${name}`, { added_tokens: tokens, ...more }, model);
added('plain', [token('<s>'), token('</s>'), token('<mask>')]);
for (const flag of ['lstrip', 'rstrip', 'single_word']) {
  added(flag, [token('<mask>', { [flag]: true }), token('tok', { [flag]: true }), token('x', { [flag]: true })]);
}
added('lstrip and rstrip', [token('<mask>', { lstrip: true, rstrip: true }), token('<s>', { lstrip: true, rstrip: true }), token('<pad>', { rstrip: true })]);
added('normalized', [token('<Norm>é', { normalized: true, special: false }), token('a', { normalized: false })],
  { normalizer: { type: 'Sequence', normalizers: [{ type: 'NFD' }, { type: 'Lowercase' }] } });
added('longest', [token('<s'), token('<s>a'), token('<s>'), token('tok'), token('toks')]);
added('of the vocabulary', [token('a'), token('b</w>'), token('-', { special: false })]);
added('with Prepend', [token('<s>'), token('<mask>')], { normalizer: { type: 'Prepend', prepend: '▁' } });
added('with Metaspace first', [token('<s>'), token('<mask>')], { pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false } });
added('blanks', [token('  '), token('\n\n'), token(' <s>')]);

const post = (name, value) => add(`post-processor ${name}`, { post_processor: value });
const template = { type: 'TemplateProcessing', single: [{ SpecialToken: { id: 'a', type_id: 0 } }, { SpecialToken: { id: 'two', type_id: 0 } },
  { Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: 'a', type_id: 0 } }], pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
special_tokens: { a: { id: 'a', ids: [7], tokens: ['a'] }, two: { id: 'two', ids: [8, 9], tokens: ['b', 'c'] } } };
const level = { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true };
post('TemplateProcessing', template);
post('BertProcessing', { type: 'BertProcessing', sep: ['x', 3], cls: ['y', 4] });
post('RobertaProcessing', { type: 'RobertaProcessing', sep: ['x', 3], cls: ['y', 4], trim_offsets: true, add_prefix_space: true });
post('ByteLevel', level);
post('Sequence', { type: 'Sequence', processors: [level, template] });

for (const model of Object.keys(models).filter((name) => name !== 'ends')) add(`model ${model}`, {}, model);
add('model bytes with cuts', { normalizer: { type: 'Replace', pattern: { String: ' ' }, content: '▁' } }, 'bytes');
add('model plain byte level', { pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true } }, 'plain');

for (const item of cases) {
  const tokenizer = Tokenizer.fromString(JSON.stringify({ version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null,
    pre_tokenizer: null, post_processor: null, decoder: null, model: models[item.model], ...item.parts }));
  item.ids = [];
  item.decoded = [];
  for (const text of texts) {
    const ids = (await tokenizer.encode(text, null, { addSpecialTokens: true })).getIds();
    item.ids.push(ids);
    if (item.parts.decoder !== undefined) item.decoded.push(await tokenizer.decode(ids, true));
  }
}
const lines = cases.map((item) => JSON.stringify(item)).join(',\n');
writeFileSync(target, `{"models":${JSON.stringify(models)},\n"texts":${JSON.stringify(texts)},\n"cases":[\n${lines}\n]}\n`);
