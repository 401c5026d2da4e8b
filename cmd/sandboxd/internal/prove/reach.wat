;; The WASM guest of a proof: tries one address and reports with its exit status
;; whether it got through. Whoever runs it replaces ADDRPORT by four bytes of
;; address and four of port, little-endian. Build: wat2wasm reach.wat
(module
  (import "wasi_snapshot_preview1" "sock_open" (func $open (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_connect" (func $connect (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 64) "ADDRPORT")
  (func (export "_start")
    ;; IPv4, stream, the descriptor goes to address 0
    (if (call $open (i32.const 1) (i32.const 2) (i32.const 0)) (then (call $exit (i32.const 0))))
    (i32.store (i32.const 16) (i32.const 64))
    (i32.store (i32.const 20) (i32.const 4))
    (if (i32.eqz (call $connect (i32.load (i32.const 0)) (i32.const 16) (i32.load (i32.const 68))))
      (then (call $exit (i32.const 7))))
    (call $exit (i32.const 0))))
