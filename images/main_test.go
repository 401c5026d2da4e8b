package images

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childEnv makes the test binary build one image in a process of its own, that
// can be killed or run as another user.
const childEnv = "IMAGES_TEST_CHILD"

type childJob struct {
	Dir, Ref string
	Node     NodeRelease
	Extra    []string
}

func TestMain(m *testing.M) {
	if raw := os.Getenv(childEnv); raw != "" {
		os.Exit(child([]byte(raw)))
	}
	goleak.VerifyTestMain(m)
}

func child(raw []byte) int {
	var job childJob
	err := json.Unmarshal(raw, &job)
	if err == nil {
		var img Image
		if img, err = job.build(); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(img)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (j childJob) build() (Image, error) {
	b, err := New(Config{CacheDir: j.Dir, Unsandboxed: true, Node: j.Node, ExtraPackages: j.Extra})
	if err != nil {
		return Image{}, err
	}
	ref, err := ParseRef(j.Ref)
	if err != nil {
		return Image{}, err
	}
	return b.Build(context.Background(), ref)
}

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }
