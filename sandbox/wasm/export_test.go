//go:build linux

package wasm

// LockDown and LockDownFurther let a test process lock itself down as a worker
// does, to try from native code what must not work.
var (
	LockDown        = lockDown
	LockDownFurther = lockDownFurther
)

// Preflight is what reads a module first.
func Preflight(bin []byte) ([]byte, error) {
	out, _, err := preflight(bin, 1<<32)
	return out, err
}
