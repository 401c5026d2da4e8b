package main

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox"
)

func TestCacheKeyHoldsNoValues(t *testing.T) {
	prepared := func() *launchable {
		return &launchable{
			srv:   server{env: []string{"TOKEN=hunter2"}, mounts: []mountSpec{{source: "/a", target: "/b"}}},
			image: images.Image{Digest: "sha256:1"}, args: []string{"x"}, tier: sandbox.Container,
		}
	}
	key, err := prepared().cacheKey()
	if err != nil || strings.Contains(key, "hunter2") || !strings.Contains(key, "TOKEN") {
		t.Errorf("%s, %v", key, err)
	}
	for name, change := range map[string]func(*launchable){
		"image":    func(p *launchable) { p.image.Digest = "sha256:2" },
		"args":     func(p *launchable) { p.args = []string{"x", "y"} },
		"variable": func(p *launchable) { p.srv.env = []string{"OTHER=1"} },
		"mount":    func(p *launchable) { p.srv.mounts = nil },
		"tier":     func(p *launchable) { p.tier = sandbox.GVisor },
	} {
		q := prepared()
		change(q)
		if other, err := q.cacheKey(); err != nil || other == key {
			t.Errorf("another %s has the same key", name)
		}
	}
	q := prepared()
	q.srv.env = []string{"TOKEN=other"}
	if other, err := q.cacheKey(); err != nil || other != key {
		t.Errorf("another value has another key: %v", err)
	}
}
