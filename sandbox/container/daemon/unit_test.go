//go:build linux

package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestRecent(t *testing.T) {
	for v, want := range map[string]bool{
		"2.4.2": true, "v2.0.0": true, "2.0": true, "2.0+unknown": true, "10.0.1": true, "2.1.0-rc.1": true,
		"1.6.20~ds1": false, "1.7.99": false, "": false, "2": false, "x.y": false, "unknown": false,
	} {
		if Recent(v, MinVersion) != want {
			t.Errorf("Recent(%q) is %v", v, !want)
		}
	}
}

func TestLogsAreBounded(t *testing.T) {
	var out bytes.Buffer
	l := &logs{log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for range 10_000 {
		if n, err := l.Write([]byte("part")); n != 4 || err != nil {
			t.Fatal(n, err)
		}
	}
	if len(l.partial) > maxLine {
		t.Errorf("a line without end takes %d bytes", len(l.partial))
	}
	for range 10_000 {
		l.Write([]byte("x\nmsg=forged level=ERROR\n\n"))
	}
	if n := strings.Count(out.String(), "\n"); n > linesPerTick {
		t.Errorf("%d lines were logged", n)
	}
	if len(l.last) != keptLines || !strings.Contains(l.tail(), "x | msg=forged") {
		t.Errorf("kept %d lines: %s", len(l.last), l.tail())
	}
	if strings.Contains(out.String(), "\nmsg=forged") || !strings.Contains(out.String(), "dropped") {
		t.Errorf("log is %.300s", out.String())
	}
}
