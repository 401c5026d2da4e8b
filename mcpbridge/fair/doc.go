// Package fair hands out places to callers in turn, so that none of them can
// keep the others waiting by asking more often. It knows nothing of what the
// places are for and starts no goroutine.
package fair
