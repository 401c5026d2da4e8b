package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/mcpbridge/outbound"
	"github.com/sandboxd/sandboxd/mcpbridge/outbound/callback"
	"github.com/sandboxd/sandboxd/netguard"
)

// published is a publisher with the ways out that its workflows' engines are
// reached by.
type published struct {
	*outbound.Publisher
	egresses []*netguard.Egress
}

// newPublished publishes a config's workflows. A workflow that cannot be
// published is a fault of the config's. Close it when done.
func newPublished(l *launcher, cfg *config.Config) (*published, error) {
	pub, err := outbound.New(outbound.Config{
		Name: "sandboxd", Version: version, Prefix: cfg.Outbound.Prefix, Logger: l.log,
		OriginChecked: true, Owner: mcpbridge.ClientOf,
	})
	if err != nil {
		return nil, usageError{err}
	}
	p := &published{Publisher: pub}
	var workflows []outbound.Workflow
	for _, w := range cfg.Outbound.Workflows {
		wf, err := p.workflow(l, cfg.Tenant, w)
		if err != nil {
			return nil, errors.Join(usageError{fmt.Errorf("workflow %s: %w", w.ID, err)}, p.closeAll())
		}
		workflows = append(workflows, wf)
	}
	for _, left := range p.Publish(workflows...) {
		err = errors.Join(err, fmt.Errorf("workflow %s cannot be published: %s", left.ID, left.Reason))
	}
	if err != nil {
		return nil, errors.Join(usageError{err}, p.closeAll())
	}
	return p, nil
}

// workflow makes a workflow whose engine is reached through the guard, under a
// policy of its one host and port.
func (p *published) workflow(l *launcher, tenant string, w config.Workflow) (outbound.Workflow, error) {
	policy, err := remotePolicy(w.Server())
	if err != nil {
		return outbound.Workflow{}, err
	}
	egress := l.guard.For(netguard.Subject{Tenant: tenant, Sandbox: "outbound:" + w.ID}, policy)
	p.egresses = append(p.egresses, egress)
	header := http.Header{}
	for _, h := range w.Headers {
		header.Set(h.Name, h.Value.Reveal())
	}
	run, err := callback.New(callback.Config{
		ID: w.ID, URL: w.URL, Header: header, Logger: l.log,
		Client: egress.HTTPClient(netguard.HTTPOptions{KeepMethod: true}),
	})
	if err != nil {
		return outbound.Workflow{}, err
	}
	out := outbound.Workflow{
		ID: w.ID, Title: w.Title, Description: w.Description,
		InputSchema: w.InputSchema, OutputSchema: w.OutputSchema, Timeout: w.Timeout, Runner: run,
	}
	for _, in := range w.Inputs {
		out.Inputs = append(out.Inputs, outbound.Input(in))
	}
	return out, nil
}

func (p *published) closeAll() error {
	var errs []error
	for _, e := range p.egresses {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// Close ends every run, then the ways out.
func (p *published) Close(ctx context.Context) error {
	return errors.Join(p.Publisher.Close(ctx), p.closeAll())
}
