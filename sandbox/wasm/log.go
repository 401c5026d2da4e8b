package wasm

import (
	"log/slog"

	"github.com/sandboxd/sandboxd/sandbox"
)

func logExit(log *slog.Logger, id string, spec sandbox.Spec, exit sandbox.Exit) {
	log.Info("sandbox ended", "sandbox", id, "tenant", spec.Tenant, "name", spec.Name,
		"cause", exit.Cause.String(), "code", exit.Code, "detail", exit.Detail, "peak_memory", exit.PeakMemoryBytes)
}
