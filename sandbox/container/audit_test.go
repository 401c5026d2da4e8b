//go:build linux

package container

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// auditEnv is the path of a static program that audits the container it runs
// in, such as amicontained.
const auditEnv = "SANDBOXD_AUDIT"

// TestAuditTool runs somebody else's audit of containers inside each tier, and
// holds its report to what the tiers claim.
func TestAuditTool(t *testing.T) {
	tool := os.Getenv(auditEnv)
	if tool == "" {
		t.Skip("no tool: set " + auditEnv + " to the path of a static amicontained")
	}
	h := newHost(t)
	archive, digest, err := kitImage(tool)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Import(t.Context(), digest, bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation, req.Spec.Image.Digest = tier, digest
		b, f, err := h.Start(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		out, oerr := io.ReadAll(f.Stdout)
		said, eerr := io.ReadAll(f.Stderr)
		if err := errors.Join(oerr, eerr, b.Stop(t.Context()), ignoreClosed(closeFiles(f))); err != nil {
			t.Error(err)
		}
		t.Logf("\n%s%s", out, said)
		report := strings.Join(strings.Fields(string(out)), " ")
		claims := []string{"pid: true", "Capabilities: Seccomp: filtering"} // no capability between the two
		if tier == sandbox.Container {
			// gVisor's kernel shows no map of its own; the host's is TestGuestIsNobody's.
			claims = append(claims, "user: true")
		}
		for _, want := range claims {
			if !strings.Contains(report, want) {
				t.Errorf("the report lacks %q", want)
			}
		}
		_, blocked, _ := strings.Cut(report, "Blocked Syscalls")
		for _, call := range []string{"MOUNT", "UMOUNT2", "PTRACE", "UNSHARE", "SETNS", "BPF", "PERF_EVENT_OPEN", "KEYCTL", "ADD_KEY", "INIT_MODULE", "KEXEC_LOAD", "REBOOT", "SWAPON", "PIVOT_ROOT", "USERFAULTFD", "OPEN_BY_HANDLE_AT", "PROCESS_VM_READV"} {
			if !strings.Contains(" "+blocked+" ", " "+call+" ") {
				t.Errorf("the report does not list %s as blocked", call)
			}
		}
	})
}
