//go:build linux

package container

import (
	"log/slog"
	"testing"
	"time"
)

// TestIDsAreNobodys: no sandbox may be given ids of the host's users, or ids
// that the kernel does not have.
func TestIDsAreNobodys(t *testing.T) {
	good := Config{Address: "/a", Runc: "/bin/sh", StateDir: "/s", Instance: "i", Logger: slog.New(slog.DiscardHandler)}
	c, err := good.validate()
	if err != nil || c.IDBase != defaultIDBase || c.IDCount != defaultIDCount {
		t.Fatalf("%+v, %v", c, err)
	}
	for name, change := range map[string]func(*Config){
		"root":             func(c *Config) { c.IDBase = 1 },
		"users":            func(c *Config) { c.IDBase = 65535 },
		"beyond 31 bits":   func(c *Config) { c.IDBase, c.IDCount = 1<<31-1<<16, 2 },
		"a count too many": func(c *Config) { c.IDCount = 1 << 31 },
		"negative time":    func(c *Config) { c.KeepImages = -time.Hour },
	} {
		c := good
		change(&c)
		if _, err := c.validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
