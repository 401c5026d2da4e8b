package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// ListBounds bound one paginated list.
type ListBounds struct {
	Items int // what is over it is not kept; 0 means 2048
	Bytes int // of all pages together; 0 means 32 MiB
	Pages int // 0 means 200
}

// List collects one paginated list (method tools/list and member tools, and
// the like). Items come raw. more says that the server has more than Items,
// which were left out. A list over Bytes or Pages, or a cursor that comes
// back, is ErrProtocol.
func (c *Client) List(ctx context.Context, method, member string, b ListBounds) (items []json.RawMessage, more bool, err error) {
	if b.Items <= 0 {
		b.Items = 2048
	}
	if b.Bytes <= 0 {
		b.Bytes = 32 << 20
	}
	if b.Pages <= 0 {
		b.Pages = 200
	}
	params := []byte(`{}`)
	seen := map[string]bool{}
	size := 0
	for range b.Pages {
		raw, err := c.Call(ctx, method, params, nil)
		if err != nil {
			return nil, false, fmt.Errorf("%s: %w", method, err)
		}
		if size += len(raw); size > b.Bytes {
			return nil, false, fmt.Errorf("%s: %w: the list is over %d bytes", method, ErrProtocol, b.Bytes)
		}
		list, ok := relay.Member(raw, member)
		text := list.Of(raw)
		if !ok || len(text) == 0 || text[0] != '[' {
			return nil, false, fmt.Errorf("%s: %w: the result has no array %q", method, ErrProtocol, member)
		}
		for _, e := range relay.Elements(text) {
			if len(items) == b.Items {
				return items, true, nil
			}
			items = append(items, bytes.Clone(e))
		}
		next, ok := relay.Member(raw, "nextCursor")
		cursor := next.Of(raw)
		if !ok || len(cursor) == 0 || cursor[0] != '"' || string(cursor) == `""` {
			return items, false, nil
		}
		if seen[string(cursor)] || len(cursor) > 64<<10 {
			return nil, false, fmt.Errorf("%s: %w: the same cursor came twice, or it is huge", method, ErrProtocol)
		}
		seen[string(cursor)] = true
		params = append(append([]byte(`{"cursor":`), cursor...), '}')
	}
	return nil, false, fmt.Errorf("%s: %w: more than %d pages", method, ErrProtocol, b.Pages)
}
