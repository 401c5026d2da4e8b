package main

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandboxd/sandboxd/policies/strict"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/engine"
)

// keepImages is how long the engine keeps an image that nobody uses.
const keepImages = 30 * 24 * time.Hour

// engineBounds are what the operator lets callers have.
type engineBounds struct {
	quota           engine.Quota
	ceiling         sandbox.Limits
	keep            time.Duration
	idBase, idCount uint32
}

func (b *engineBounds) flags(fl *pflag.FlagSet) {
	fl.IntVar(&b.quota.Sandboxes, "max-sandboxes", 0, "sandboxes that run at once (0: 512)")
	fl.IntVar(&b.quota.UserSandboxes, "max-user-sandboxes", 0, "and of one user (0: 128)")
	fl.Var((*byteSize)(&b.quota.MemoryBytes), "max-memory", "memory limits of all running sandboxes together, such as 12GiB (0: no bound)")
	fl.Var((*byteSize)(&b.quota.UserMemoryBytes), "max-user-memory", "and of one user's")
	fl.IntVar(&b.quota.Connections, "max-connections", 0, "callers at once (0: 1024)")
	fl.IntVar(&b.quota.UserConnections, "max-user-connections", 0, "and of one user (0: 256)")
	fl.Var((*byteSize)(&b.ceiling.MemoryBytes), "sandbox-memory", "the most memory that one sandbox may ask for (0: the host's)")
	fl.Float64Var(&b.ceiling.CPUs, "sandbox-cpus", 0, "the most processors (0: no bound)")
	fl.Int64Var(&b.ceiling.PIDs, "sandbox-pids", 0, "the most processes and threads (0: a quarter of the kernel's)")
	fl.Var((*byteSize)(&b.ceiling.TmpBytes), "sandbox-tmp", "the largest private temporary folder (0: the host's memory)")
	fl.Var((*byteSize)(&b.ceiling.FileBytes), "sandbox-file-size", "the largest file that it may write (0: no bound)")
	fl.DurationVar(&b.keep, "keep-images", keepImages, "remove images that nobody used for so long (0: never)")
	fl.Uint32Var(&b.idBase, "id-base", 0, "first of the user ids that sandboxes run as, 65536 each (0: 1879048192)")
	fl.Uint32Var(&b.idCount, "id-count", 0, "how many such ranges there are (0: 4000)")
}

// byteSize is a flag in bytes, as policies write them.
type byteSize int64

// String implements pflag.Value.
func (b *byteSize) String() string { return strconv.FormatInt(int64(*b), 10) }

// Type implements pflag.Value.
func (*byteSize) Type() string { return "size" }

// Set implements pflag.Value.
func (b *byteSize) Set(s string) error {
	if s == "0" {
		*b = 0
		return nil
	}
	v, ok := strict.ParseBytes(s)
	if !ok {
		return errors.New("want a size such as 512MiB, 1GiB or a whole number of bytes")
	}
	*b = byteSize(v)
	return nil
}
