package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// stay keeps a server from ending with its input.
const stay = "setInterval(() => {}, 1e6);\n"

// orphans starts a process that ignores TERM, holds the streams, and whose
// parent has ended; it goes on once that process runs.
const orphans = `
const fs = require('node:fs'), { spawn } = require('node:child_process');
delete process.env.NODE_OPTIONS;
const grandchild = 'process.on("SIGTERM", () => {}); require("fs").writeFileSync("/tmp/there", ""); setInterval(() => {}, 1e6)';
const child = 'require("child_process").spawn(process.execPath, ["-e", ' + JSON.stringify(grandchild) + '], {detached: true, stdio: "inherit"}).unref()';
spawn(process.execPath, ['-e', child], { detached: true, stdio: 'inherit' }).unref();
`

// writes uses a mounted folder as a server does that works on files.
const writes = `
const files = require('node:fs');
files.mkdirSync('/data/new');
files.writeFileSync('/data/new/copy', files.readFileSync('/data/note.txt'), { mode: 0o600 });
files.appendFileSync('/data/note.txt', 'and a line of the guest\n');
files.renameSync('/data/new/copy', '/data/copy');
`

// stopCase is a server that behaves in some way, what is done to it once it
// is ready, and how the program must end.
type stopCase struct {
	name   string
	script string
	ready  string // the condition under which it is ready; empty: at once
	unsaid bool   // do not wait until it is ready
	policy string
	mount  string // mounts a folder of the user's there, to be written to
	do     func(t *testing.T, r *running)
	status int
	says   string // something that the program must say about the end; empty: nothing
}

func closeInput(t *testing.T, r *running) {
	t.Helper()
	if err := r.stdin.Close(); err != nil {
		t.Error(err)
	}
}

func signalled(sig syscall.Signal) func(*testing.T, *running) {
	return func(t *testing.T, r *running) {
		t.Helper()
		if err := r.cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	}
}

func nothing(*testing.T, *running) {}

// closeOutput makes the client one that no longer reads, and has the server
// answer.
func closeOutput(t *testing.T, r *running) {
	t.Helper()
	if err := r.stdout.Close(); err != nil {
		t.Error(err)
	}
	if _, err := fmt.Fprintln(r.stdin, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); err != nil {
		t.Error(err)
	}
}

const (
	patient   = "limits: {stop_grace: 20s}\n" // for servers that end when asked
	impatient = "limits: {stop_grace: 2s}\n"  // for those that have to be made to
)

var stopCases = []stopCase{
	{name: "ends with its input", script: "process.stdin.on('end', () => process.exit(7));\n" + stay, policy: patient, do: closeInput, status: 7, says: "status 7"},
	{name: "ends with status 0", script: "process.stdin.on('end', () => process.exit(0));\n" + stay, policy: patient, do: closeInput},
	{name: "ends on TERM", script: "process.on('SIGTERM', () => process.exit(9));\n" + stay, policy: "limits: {stop_grace: 5s}\n", do: closeInput, status: 9, says: "status 9"},
	{name: "ignores all", script: "process.on('SIGTERM', () => {});\n" + stay, policy: impatient, do: closeInput, status: 137, says: "signal 9 (killed)"},
	{name: "leaves orphans behind", script: orphans + "process.stdin.on('end', () => process.exit(3));\n", ready: "fs.existsSync('/tmp/there')", policy: patient, do: closeInput, status: 3, says: "status 3"},
	{name: "orphans and ignores all", script: orphans + "process.on('SIGTERM', () => {});\n" + stay, ready: "fs.existsSync('/tmp/there')", policy: impatient, do: closeInput, status: 137, says: "signal 9"},
	{name: "TERM to run", script: "process.on('SIGTERM', () => {});\n" + stay, policy: impatient, do: signalled(syscall.SIGTERM), status: 137, says: "signal 9"},
	{name: "INT to run", script: stay, policy: impatient, do: signalled(syscall.SIGINT), status: 143, says: "signal 15 (terminated)"},
	{name: "HUP to run", script: stay, policy: impatient, do: signalled(syscall.SIGHUP), status: 143, says: "signal 15 (terminated)"},
	{name: "client closes its output", script: "process.on('SIGTERM', () => {});\n" + stay, policy: impatient, do: closeOutput, status: 1, says: "broken pipe"},
	{name: "writes through a mount", script: writes + "process.stdin.on('end', () => process.exit(0));\n", mount: "/data", policy: patient, do: closeInput},
	{name: "crashes", script: "setTimeout(() => { throw new Error('a fault of the server') }, 200);\n", policy: patient, do: nothing, status: 1, says: "status 1"},
	{name: "aborts", script: "setTimeout(() => process.abort(), 200);\n", policy: patient, do: nothing, status: 134, says: "signal 6"},
	{name: "uses too much memory", script: "const all = []; setInterval(() => all.push(Buffer.alloc(16 << 20, 1)), 1);\n", policy: "limits: {memory: 256MiB}\n", do: nothing, status: 137, says: "it used all of its 256 MiB of memory; it used at most 256 MiB of memory"},
	{name: "meets its time limit", script: stay, unsaid: true, policy: "limits: {wall: 8s}\n", do: nothing, status: 137, says: "deadline"},
}

// TestStop: however a server behaves and whatever ends it, the program ends
// within a bound with the right status, says why where the server was not
// asked to end, and nothing of either is left.
func TestStop(t *testing.T) {
	e := startEngine(t)
	buildImage(t, "npm:@modelcontextprotocol/server-everything")
	places := make(chan struct{}, 6) // more than there are cores: they mostly wait
	var wg sync.WaitGroup
	for _, tier := range containerTiers {
		for _, c := range stopCases {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				t.Run(tier+"/"+c.name, func(t *testing.T) { c.run(t, e, tier) })
			})
		}
	}
	wg.Wait()
	e.leavesNothing(t, "after all of them")
}

func (c stopCase) run(t *testing.T, e *engine, tier string) {
	home := lab.UserDir(t)
	ready := c.ready
	if ready == "" {
		ready = "true"
	}
	script := c.script + fmt.Sprintf(`
const announce = setInterval(() => { if (%s) { clearInterval(announce); require('node:fs').writeSync(2, 'READY\n') } }, 20);
`, ready)
	args := []string{"run", "--isolation", tier}
	if c.mount != "" {
		dir := noteFolder(t, home)
		args = append(args, "--mount", dir+":"+c.mount+":rw")
		defer checkWritten(t, dir)
	}
	r := startProgram(t, home, e.env(), append(args, "--policy", homeFile(t, home, "policy.yaml", c.policy),
		"--mount", homeFile(t, home, "x.js", script)+":/lab/x.js", "--env", "NODE_OPTIONS=--require=/lab/x.js",
		"--", "npx", "-y", "@modelcontextprotocol/server-everything")...)
	if !c.unsaid {
		r.says(t, "READY\n")
	}
	c.do(t, r)
	if got := r.status(t, 3*time.Minute); got != c.status {
		t.Errorf("status %d, want %d:\n%s\n%s", got, c.status, r.stderr, ending(e.log.String()))
	}
	var said []string
	for line := range strings.Lines(r.stderr.String()) {
		if strings.HasPrefix(line, "sandboxd: ") && !strings.HasPrefix(line, "sandboxd: engine: ") || strings.Contains(line, "level=") {
			said = append(said, line)
		}
	}
	if text := strings.Join(said, ""); c.says == "" && text != "" || !strings.Contains(text, c.says) {
		t.Errorf("it said %q, want something with %q\n%s", said, c.says, r.stderr)
	}
}

// checkWritten holds what the guest wrote to be the user's own.
func checkWritten(t *testing.T, dir string) {
	t.Helper()
	for name, want := range map[string]string{
		"copy": "a note of the host's\n", "note.txt": "a note of the host's\nand a line of the guest\n", "new": "",
	} {
		p := filepath.Join(dir, name)
		var st syscall.Stat_t
		if err := syscall.Stat(p, &st); err != nil {
			t.Error(err)
			continue
		}
		if st.Uid != lab.UserID || st.Gid != lab.UserID {
			t.Errorf("%s belongs to %d:%d", p, st.Uid, st.Gid)
		}
		if b, _ := os.ReadFile(p); string(b) != want {
			t.Errorf("%s holds %q", p, b)
		}
	}
}

// homeFile makes a file of the ordinary user's.
func homeFile(t testing.TB, home, name, content string) string {
	t.Helper()
	p := filepath.Join(home, name)
	if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(p, lab.UserID, lab.UserID); err != nil {
		t.Fatal(err)
	}
	return p
}
