//go:build linux

package wasm_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

// benchRuntime has a cache folder of its own.
func benchRuntime(b *testing.B, cache string) *wasm.Runtime {
	b.Helper()
	r, err := wasm.New(wasm.Config{CacheDir: cache, WorkerCommand: []string{"/proc/self/exe"}})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// toTools starts the example server and lists its tools.
func toTools(b *testing.B, r *wasm.Runtime, tier sandbox.Isolation) {
	b.Helper()
	sb, err := r.Start(context.Background(), fetchSpec(b, tier), nil)
	if err != nil {
		b.Fatal(err)
	}
	s := connect(b, sb)
	if _, err := s.ListTools(context.Background(), nil); err != nil {
		b.Fatal(err)
	}
	_ = s.Close()
	if err := sb.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func forTiersB(b *testing.B, f func(b *testing.B, tier sandbox.Isolation)) {
	for _, tier := range tiers {
		b.Run(tier.String(), func(b *testing.B) { f(b, tier) })
	}
}

// cpu is the processor time that this process and its ended workers have used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// reportCPU reports the processor time for each round since began.
func reportCPU(b *testing.B, began time.Duration) {
	b.Helper()
	b.ReportMetric((cpu(b)-began).Seconds()*1e3/float64(b.N), "cpu-ms/op")
}

// BenchmarkStartCold compiles the module each time.
func BenchmarkStartCold(b *testing.B) {
	forTiersB(b, func(b *testing.B, tier sandbox.Isolation) {
		began := cpu(b)
		for b.Loop() {
			r := benchRuntime(b, b.TempDir())
			toTools(b, r, tier)
			_ = r.Close(context.Background())
		}
		reportCPU(b, began)
	})
}

// BenchmarkStartCached starts with compiled code on disk and nothing in
// memory, as a fresh process does.
func BenchmarkStartCached(b *testing.B) {
	forTiersB(b, func(b *testing.B, tier sandbox.Isolation) {
		cache := b.TempDir()
		r := benchRuntime(b, cache)
		toTools(b, r, tier)
		_ = r.Close(context.Background())
		began := cpu(b)
		for b.Loop() {
			r := benchRuntime(b, cache)
			toTools(b, r, tier)
			_ = r.Close(context.Background())
		}
		reportCPU(b, began)
	})
}

// BenchmarkStartWarm starts where the module is loaded already.
func BenchmarkStartWarm(b *testing.B) {
	forTiersB(b, func(b *testing.B, tier sandbox.Isolation) {
		r := benchRuntime(b, built.cache)
		defer r.Close(context.Background())
		toTools(b, r, tier)
		for b.Loop() {
			toTools(b, r, tier)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	forTiersB(b, func(b *testing.B, tier sandbox.Isolation) {
		r := benchRuntime(b, built.cache)
		defer r.Close(context.Background())
		sb, err := r.Start(context.Background(), fetchSpec(b, tier), nil)
		if err != nil {
			b.Fatal(err)
		}
		s := connect(b, sb)
		args := map[string]any{"text": "hello"}
		call(b, s, "echo", args)
		var took []time.Duration
		for b.Loop() {
			began := time.Now()
			call(b, s, "echo", args)
			took = append(took, time.Since(began))
		}
		quantiles(b, took)
		_ = s.Close()
	})
}

// BenchmarkStop is how long a guest lives on once its grace, which is 1 ms here,
// is over.
func BenchmarkStop(b *testing.B) {
	forTiersB(b, func(b *testing.B, tier sandbox.Isolation) {
		for _, what := range []string{"spin", "sleep"} {
			b.Run(what, func(b *testing.B) {
				r := benchRuntime(b, built.cache)
				defer r.Close(context.Background())
				var took []time.Duration
				for b.Loop() {
					s := spec(b, tier, what)
					s.Limits.StopGrace = time.Millisecond
					sb := start(b, r, s, nil)
					sb.expect("ready")
					began := time.Now()
					if err := sb.Close(context.Background()); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(began))
				}
				quantiles(b, took)
			})
		}
	})
}

// quantiles reports the middle and the best of a number of times: on a busy
// machine the best says more.
func quantiles(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "ms-p50")
	b.ReportMetric(float64(took[len(took)/10].Microseconds())/1e3, "ms-p10")
}

// BenchmarkDownload fetches 4 MiB of text over HTTP.
func BenchmarkDownload(b *testing.B) {
	body := strings.Repeat("0123456789abcdef", 1<<18)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
	defer web.Close()
	forTiersB(b, func(b *testing.B, tier sandbox.Isolation) {
		r := benchRuntime(b, built.cache)
		defer r.Close(context.Background())
		sb, err := r.Start(context.Background(), spec(b, tier, append([]string{"get"}, repeat("http://a.test/", b.N)...)...), newEgress(map[string]string{"a.test:80": hostPort(web.URL)}))
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(body)))
		b.ResetTimer()
		got := (&running{b, sb, nil}).wait()
		if got.Code != 0 {
			b.Fatal(got)
		}
	})
}

func repeat(s string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = s
	}
	return list
}

// BenchmarkMemory reports what each further instance of the example server
// costs this process and, where there is one, its worker.
func BenchmarkMemory(b *testing.B) {
	forTiersB(b, func(b *testing.B, tier sandbox.Isolation) {
		for b.Loop() {
			r := benchRuntime(b, built.cache)
			open := func() { connect(b, startBench(b, r, tier)) }
			open()
			runtime.GC()
			before := resident(b)
			const more = 10
			for range more {
				open()
			}
			runtime.GC()
			b.ReportMetric(float64(resident(b)-before)/more/1e6, "MB/instance")
			b.ReportMetric(float64(before)/1e6, "MB/first")
			_ = r.Close(context.Background())
		}
	})
}

func startBench(b *testing.B, r *wasm.Runtime, tier sandbox.Isolation) sandbox.Sandbox {
	b.Helper()
	sb, err := r.Start(context.Background(), fetchSpec(b, tier), nil)
	if err != nil {
		b.Fatal(err)
	}
	return sb
}

// resident adds up the memory of this process and its workers.
func resident(b *testing.B) int64 {
	b.Helper()
	pids := []string{"self"}
	for _, pid := range workers(b, os.Getpid()) {
		pids = append(pids, strconv.Itoa(pid))
	}
	var sum int64
	for _, pid := range pids {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			continue
		}
		for l := range strings.Lines(string(status)) {
			if f := strings.Fields(l); len(f) > 1 && f[0] == "VmRSS:" {
				kb, _ := strconv.ParseInt(f[1], 10, 64)
				sum += kb << 10
			}
		}
	}
	return sum
}
