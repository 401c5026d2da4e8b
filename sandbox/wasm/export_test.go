//go:build linux

package wasm

import "time"

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

// ProcessTime is what the governor goes by.
var ProcessTime = processTime

// Burst is what a worker may save up, of one processor.
const Burst = burst

// Budget gives what is left after each spending, at times a second apart.
func Budget(cpus float64, used ...time.Duration) []bool {
	var b budget
	var out []bool
	for i, u := range used {
		out = append(out, b.spend(time.Unix(int64(i), 0), cpus, u))
	}
	return out
}
