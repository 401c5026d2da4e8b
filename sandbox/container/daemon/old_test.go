//go:build linux

package daemon

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sandboxd/sandboxd/sandbox"
)

// old answers with the version of a containerd that no test machine has to
// have; all that is asked of it is this one call.
type old struct {
	versionapi.UnimplementedVersionServer
}

func (old) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: "1.6.20~ds1"}, nil
}

func TestATooOldContainerdIsRefusedWithTheReason(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	versionapi.RegisterVersionServer(server, old{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for name, cfg := range map[string]Config{"given": {Address: socket}, "the system's": {System: socket}} {
		_, err := Start(t.Context(), cfg)
		var un *sandbox.UnavailableError
		if !errors.As(err, &un) || !strings.Contains(err.Error(), "ignores id-mapped mounts") || un.Next == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Run("one of our own takes its place", func(t *testing.T) {
		bin, dir := need(t)
		cfg := config(dir, bin)
		cfg.System = socket
		if d := start(t, cfg); !d.Supervised() {
			t.Error("the old one is used")
		}
	})
}
