//go:build linux

package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Config is what a Server needs. Only Tiers has no default.
type Config struct {
	// Socket is the path to listen on; empty means DefaultSocket. Its folder
	// is made where it is missing, and must be this user's alone to write.
	Socket string
	// Group, a name or a number, may connect beside root: the socket is then
	// root:GROUP 0660. Empty means root alone (0600).
	Group string
	// Version is the engine's own, as hello reports it.
	Version string
	// Tiers are those that Serve's Host can start.
	Tiers []sandbox.Isolation
	// Idle ends Serve when no connection and no sandbox has been there for
	// this long; 0 means never.
	Idle time.Duration
	// Quota bounds what callers hold at once.
	Quota Quota
	// Ceiling bounds each sandbox's limits; a zero field sets no bound, except
	// that memory and temporary space are bounded by the host's memory, and
	// pids by a quarter of all that the kernel can number.
	Ceiling sandbox.Limits
	// MaxImageBytes bounds one imported archive; 0 means 8 GiB.
	MaxImageBytes int64
	// Logger receives diagnostics; nil discards them.
	Logger *slog.Logger
}

// Quota bounds what all callers, and each user (peer uid), hold at once. A
// zero field means its default.
type Quota struct {
	Sandboxes, UserSandboxes     int // 512 and 128
	Connections, UserConnections int // 1024 and 256
	// Imports and UserImports run at once (4 and 2); more of them wait.
	Imports, UserImports int
	// MemoryBytes and UserMemoryBytes bound the sum of running sandboxes' memory
	// limits; 0 means no bound, since few use all that they may.
	MemoryBytes, UserMemoryBytes int64
}

// withDefaults checks the configuration and fills in what it leaves out.
func (c Config) withDefaults() (Config, error) {
	if c.Socket == "" {
		c.Socket = DefaultSocket
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(c.Tiers) == 0 || len(c.Tiers) > maxTiers || len(c.Version) > maxName || c.Idle < 0 || c.MaxImageBytes < 0 {
		return c, errors.New("engine config: it needs at least one tier, a short version and no negative bound")
	}
	for _, t := range c.Tiers {
		if t.IsWASM() || t.String() == "none" {
			return c, fmt.Errorf("engine config: %s is not a container tier", t)
		}
	}
	c.Tiers = slices.Clone(c.Tiers)
	if c.MaxImageBytes == 0 {
		c.MaxImageBytes = 8 << 30
	}
	q := &c.Quota
	for _, f := range []struct {
		v     *int
		usual int
	}{
		{&q.Sandboxes, 512},
		{&q.UserSandboxes, 128},
		{&q.Connections, 1024},
		{&q.UserConnections, 256},
		{&q.Imports, 4},
		{&q.UserImports, 2},
	} {
		if *f.v < 0 {
			return c, errors.New("engine config: a negative quota")
		}
		if *f.v == 0 {
			*f.v = f.usual
		}
	}
	if err := c.Ceiling.Validate(); err != nil {
		return c, fmt.Errorf("engine config: the ceiling: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return c, fmt.Errorf("engine config: reading the host's memory: %w", err)
	}
	if q.MemoryBytes < 0 || q.UserMemoryBytes < 0 {
		return c, errors.New("engine config: a negative quota")
	}
	ram := int64(info.Totalram) * int64(info.Unit)
	for _, v := range []*int64{&c.Ceiling.MemoryBytes, &c.Ceiling.TmpBytes} {
		if *v == 0 || *v > ram {
			*v = ram
		}
	}
	if c.Ceiling.PIDs == 0 {
		all, err := pidMax()
		if err != nil {
			return c, fmt.Errorf("engine config: reading how many processes the host can have: %w", err)
		}
		c.Ceiling.PIDs = max(all/4, 1)
	}
	return c, nil
}

// pidMax is how many processes and threads the kernel can number.
func pidMax() (int64, error) {
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}
