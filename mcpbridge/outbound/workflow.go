package outbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// Workflow is one workflow as its engine declares it.
type Workflow struct {
	// ID names it in the engine; the tool's name is made of it.
	ID string
	// Title and Description are for people and models.
	Title, Description string
	// Inputs or InputSchema say what a run takes, not both. Without either it
	// takes nothing.
	Inputs      []Input
	InputSchema json.RawMessage
	// OutputSchema, where given, is what every run's outputs must match.
	OutputSchema json.RawMessage
	// Timeout bounds a run; 0 means 10 minutes. While a person is asked it
	// stands still.
	Timeout time.Duration
	// Runner runs it.
	Runner Runner
}

// Runner runs one workflow. It can be called many times, concurrently.
type Runner interface {
	// Run runs the workflow to its end and returns its outputs, a JSON object.
	// inputs is an object that matches the declared schema. When ctx ends
	// (context.Cause says why) the run must end too. The error's text is shown
	// to the client.
	Run(ctx context.Context, inputs json.RawMessage, caller Caller) (outputs json.RawMessage, err error)
}

// RunnerFunc is a Runner that is one function.
type RunnerFunc func(ctx context.Context, inputs json.RawMessage, caller Caller) (json.RawMessage, error)

// Run calls f.
func (f RunnerFunc) Run(ctx context.Context, inputs json.RawMessage, caller Caller) (json.RawMessage, error) {
	return f(ctx, inputs, caller)
}

// Caller is who waits for a run. It is of no use after Run has returned.
type Caller interface {
	// Progress tells the client how far the run is. It drops what the client
	// did not ask for or would get too often.
	Progress(Progress)
	// Ask asks the client's user and waits for the answer. The error is
	// ErrCannotAsk where the client has nobody to ask, ErrNoAnswer where none
	// came in time, or says what is wrong with the question or the answer.
	Ask(ctx context.Context, q Question) (Answer, error)
}

// Progress is one step of a run.
type Progress struct {
	// Done must grow from step to step (2025-11-25, Progress); what does not is
	// dropped. 0 stands for one more than before.
	Done float64
	// Total is what Done will be at the end; 0 if that is unknown.
	Total float64
	// Message is for people.
	Message string
}

// Question is a human gate: what a run needs from a person.
type Question struct {
	Message string
	// Schema is a flat object schema of the wanted answer (2025-11-25,
	// Elicitation, Requested Schema). Empty asks for a yes or a no.
	Schema json.RawMessage
	// URL, instead of Schema, sends the person to a page. Acceptance then means
	// that it was opened; what comes of it the engine learns by itself.
	URL string
}

// Action is what the person did.
type Action string

// The actions.
const (
	Accept  Action = "accept"
	Decline Action = "decline" // an explicit no
	Cancel  Action = "cancel"  // neither: the question was closed
)

// Answer is a person's answer.
type Answer struct {
	Action Action
	// Content matches the question's Schema; it is nil unless Action is Accept.
	Content json.RawMessage
}

// The ways in which nobody answers.
var (
	ErrCannotAsk = errors.New("it asks its user something, and this client cannot be asked: use one that supports elicitation")
	ErrNoAnswer  = errors.New("nobody answered its question in time")
)

// Workflows is an engine that can list what it has.
type Workflows interface {
	// List returns every workflow that could be published.
	List(ctx context.Context) ([]Workflow, error)
}

// Select takes the named workflows of an engine, and no other. An id that the
// engine does not have is an error.
func Select(ctx context.Context, from Workflows, ids ...string) ([]Workflow, error) {
	all, err := from.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the engine's workflows: %w", err)
	}
	byID := make(map[string]Workflow, len(all))
	for _, w := range all {
		byID[w.ID] = w
	}
	var out []Workflow
	for _, id := range ids {
		w, ok := byID[id]
		if !ok {
			return nil, fmt.Errorf("the engine has no workflow %q", relay.Cut([]byte(id), 80))
		}
		out = append(out, w)
	}
	return out, nil
}
