// The kernels of the library, compiled to WebAssembly, and the memory that they share with this script.

const NO_FILES = { fd_close: () => 8, fd_seek: () => 8, fd_write: () => 8 };

export class Kernels {
  constructor(instance) {
    this.call = instance.exports;
    this.call._initialize();
  }

  static async load(bytes) {
    const { instance } = await WebAssembly.instantiate(bytes, { wasi_snapshot_preview1: NO_FILES });
    return new Kernels(instance);
  }

  allocate(bytes) {
    const address = this.call.malloc(Math.max(1, bytes));
    if (!address) throw new Error("this page has run out of memory; close other pages, or export a smaller model");
    return address;
  }

  free(address) {
    this.call.free(address);
  }

  // A copy of an array in the kernels' memory.
  put(array) {
    const address = this.allocate(array.byteLength);
    new Uint8Array(this.call.memory.buffer, address, array.byteLength).set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    return address;
  }

  // What the kernels say at an address.
  text(address) {
    const bytes = new Uint8Array(this.call.memory.buffer, address);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }

  // The kernels' memory as an array; no longer valid once they allocate some.
  view(Type, address, length) {
    return new Type(this.call.memory.buffer, address, length);
  }

  copy(Type, address, length) {
    return this.view(Type, address, length).slice();
  }
}

// Addresses that are freed together.
export class Region {
  constructor(kernels) {
    this.kernels = kernels;
    this.addresses = [];
  }

  keep(address) {
    this.addresses.push(address);
    return address;
  }

  allocate(bytes) {
    return this.keep(this.kernels.allocate(bytes));
  }

  put(array) {
    return this.keep(this.kernels.put(array));
  }

  free() {
    for (const address of this.addresses) this.kernels.free(address);
    this.addresses = [];
  }
}
