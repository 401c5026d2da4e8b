package mcpbridge

import (
	"slices"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// ownTasks are the tasks that one client of a shared sandbox began there
// (2025-11-25, Tasks). The ids are the server's: without this, whoever shares
// the sandbox could list, read and cancel everybody's.
type ownTasks struct {
	mu  sync.Mutex
	ids []string // oldest first; the newest maxTasks
}

// began notes the task that the answer to a call names, if it does.
func (o *ownTasks) began(result []byte) {
	at, twice := onlyMember(result, "task")
	id, _, ok := taskID(at.Of(result))
	if twice || at.End == 0 || !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ids = append(o.ids, id); len(o.ids) > maxTasks {
		o.ids = o.ids[1:] // most likely it ended
	}
}

// owns says whether an object names one of them.
func (o *ownTasks) owns(object []byte) bool {
	id, _, ok := taskID(object)
	o.mu.Lock()
	defer o.mu.Unlock()
	return ok && slices.Contains(o.ids, id)
}

// allows says whether a request may reach the server.
func (o *ownTasks) allows(method string, params []byte) bool {
	switch method {
	case "tasks/get", "tasks/result", "tasks/cancel":
		return o.owns(params)
	}
	return true
}

// only leaves them alone in the answer to tasks/list.
func (o *ownTasks) only(result []byte) ([]byte, error) {
	at, twice := onlyMember(result, "tasks")
	if twice || at.End == 0 {
		return nil, errf(CodeBadResult, "the server's list of tasks cannot be read")
	}
	kept := []byte{'['}
	for _, t := range relay.Elements(at.Of(result)) {
		if !o.owns(t) {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, t...)
	}
	return relay.Splice(result, relay.Edit{Span: at, With: append(kept, ']')})
}
