package wasm

// WorkerMain does nothing while tier wasm is unavailable.
func WorkerMain() {}
