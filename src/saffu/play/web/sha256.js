// SHA-256 (FIPS 180-4). Browsers have it too, but only on pages that came over HTTPS or from this machine.

const isPrime = (n) => {
  for (let d = 2; d * d <= n; d += 1) if (n % d === 0) return false;
  return true;
};
const PRIMES = Array.from({ length: 312 }, (_, n) => n).filter((n) => n > 1 && isPrime(n));
const fraction = (x) => ((x - Math.floor(x)) * 2 ** 32) | 0;
const ROUNDS = Int32Array.from(PRIMES.slice(0, 64), (prime) => fraction(Math.cbrt(prime)));
const START = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
const turned = (x, n) => (x >>> n) | (x << (32 - n));

// The hash of several pieces of bytes, one after the other, in hexadecimal.
export function sha256(pieces) {
  const state = Int32Array.from(START);
  const block = new Uint8Array(64);
  let filled = 0;
  let total = 0;
  const add = (bytes) => {
    for (const byte of bytes) {
      block[filled++] = byte;
      if (filled === 64) {
        digest(state, block);
        filled = 0;
      }
    }
  };
  for (const piece of pieces) {
    total += piece.length;
    add(piece);
  }
  add([0x80, ...new Array((119 - filled) % 64).fill(0)]);
  const size = new DataView(new ArrayBuffer(8));
  size.setBigUint64(0, BigInt(total) * 8n);
  add(new Uint8Array(size.buffer));
  return Array.from(state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

const w = new Int32Array(64);

function digest(state, block) {
  const words = new DataView(block.buffer);
  for (let t = 0; t < 16; t += 1) w[t] = words.getInt32(4 * t);
  for (let t = 16; t < 64; t += 1) {
    const low = turned(w[t - 15], 7) ^ turned(w[t - 15], 18) ^ (w[t - 15] >>> 3);
    const high = turned(w[t - 2], 17) ^ turned(w[t - 2], 19) ^ (w[t - 2] >>> 10);
    w[t] = (w[t - 16] + low + w[t - 7] + high) | 0;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let t = 0; t < 64; t += 1) {
    const one = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + ROUNDS[t] + w[t]) | 0;
    const two = ((turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + one) | 0;
    d = c;
    c = b;
    b = a;
    a = (one + two) | 0;
  }
  [a, b, c, d, e, f, g, h].forEach((word, place) => (state[place] = (state[place] + word) | 0));
}
