package sandboxtest

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/guest"
)

// testStdio: what goes in comes out, the end of the input reaches the guest,
// and the guest's end that of both outputs.
func (s *suite) testStdio(t *testing.T) {
	b := s.start(t, s.spec("echo"), nil)
	for _, line := range []string{"one", "", strings.Repeat("long ", 2000)} {
		if got := b.ask(line); got != line {
			t.Errorf("%d bytes came back as %d", len(line), len(got))
		}
	}
	if b.Stdio() != b.Stdio() {
		t.Error("Stdio gives other streams each time")
	}
	if err := b.Stdio().In.Close(); err != nil {
		t.Error(err)
	}
	if rest := b.all(b.out); rest != "" {
		t.Errorf("more output: %q", rest)
	}
	if got := b.all(b.Stdio().Err); got != guest.EndOfInput {
		t.Errorf("standard error %q", got)
	}
	b.ended(sandbox.Exited, 0)
}

// testLargeOutput: a great deal in one piece, each way, with nothing lost.
func (s *suite) testLargeOutput(t *testing.T) {
	const size = 4 << 20
	b := s.start(t, s.spec("output", strconv.Itoa(size)), nil)
	if got := b.all(b.out); got != string(guest.Pattern(size)) {
		t.Errorf("%d bytes of output arrived wrong, as %d", size, len(got))
	}
	b.ended(sandbox.Exited, 0)

	b = s.start(t, s.spec("echo"), nil)
	in := guest.Pattern(1 << 20)
	sent := make(chan error, 1)
	go func() {
		_, err := b.Stdio().In.Write(in)
		if err == nil {
			err = b.Stdio().In.Close()
		}
		sent <- err
	}()
	if got := b.all(b.out); got != string(in) {
		t.Errorf("%d bytes came back wrong, as %d", len(in), len(got))
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func (s *suite) testGuestClosesOutput(t *testing.T) {
	s.needs(t, CloseOutput)
	b := s.start(t, s.spec("closeout"), nil)
	b.ready()
	if rest := b.all(b.out); rest != "" {
		t.Errorf("more output: %q", rest)
	}
	if err := b.Stdio().In.Close(); err != nil { // it lived until now
		t.Error(err)
	}
	b.ended(sandbox.Exited, 0)
}

// testStdinOfTheDead: writing to a guest that is gone fails, and soon.
func (s *suite) testStdinOfTheDead(t *testing.T) {
	b := s.start(t, s.spec("exit", "0"), nil)
	b.wait()
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		for {
			if _, err := b.Stdio().In.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}()
	select {
	case <-failed:
	case <-time.After(patience):
		t.Error("writes to a guest that is gone go on")
	}
	if got := b.all(b.out) + b.all(b.Stdio().Err); got != "" {
		t.Errorf("it said %q", got)
	}
}

// testSeesOnlyItsSpec: arguments, environment and folder, and nothing of the
// host's own.
func (s *suite) testSeesOnlyItsSpec(t *testing.T) {
	t.Setenv("SANDBOXTEST_SECRET", "of the host")
	spec := s.spec("about", "an argument", "", "ünï 'q' \"$HOME\"")
	spec.Env = []string{"A=1", "B=x=y", "EMPTY="}
	if _, ok := s.cfg.Lacks[Mounts]; !ok {
		spec.Dir, spec.Mounts = "/data", []sandbox.Mount{{Source: hostFolder(t), Target: "/data"}}
	}
	b := s.start(t, spec, nil)
	var got guest.About
	if err := json.Unmarshal([]byte(b.all(b.out)), &got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Args[1:], spec.Args[1:]) {
		t.Errorf("arguments %q, want %q", got.Args, spec.Args)
	}
	env := slices.DeleteFunc(got.Env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(s.cfg.AddsEnv, name)
	})
	if !slices.Equal(env, spec.Env) {
		t.Errorf("environment %q, want %q", env, spec.Env)
	}
	if spec.Dir != "" && got.Dir != spec.Dir {
		t.Errorf("folder %q, want %q", got.Dir, spec.Dir)
	}
	b.ended(sandbox.Exited, 0)
}
