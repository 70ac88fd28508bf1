// SPDX-License-Identifier: MIT
//
// Perfetto's trace processor, outside a browser: `node perfetto_engine.js DIRECTORY <requests >replies`, both of them a
// TraceProcessorRpcStream. The directory is that of the user interface, whose worker loads the processor.

"use strict";

const { Console } = require("node:console");
const fs = require("node:fs");
const path = require("node:path");

const directory = process.argv[2];

// The worker asks its server for the processor, and waits for it.
class XMLHttpRequest {
	open(_method, name) {
		this.path = path.join(directory, name);
	}
	send() {
		this.response = fs.readFileSync(this.path);
	}
}

const worker = { location: { href: "file:///" } };
const port = { postMessage: (reply) => fs.writeSync(1, reply) };
const source = fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8");
// It refuses to start in Node.js, and prints to the console.
const names = ["self", "WorkerGlobalScope", "XMLHttpRequest", "process", "console"];
new Function(...names, source)(worker, Object, XMLHttpRequest, undefined, new Console(process.stderr));
worker.onmessage({ data: port });
// It is ready when its own promises are kept.
setImmediate(() => port.onmessage({ data: new Uint8Array(fs.readFileSync(0)) }));
