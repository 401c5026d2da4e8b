package remote

// Discovers says that a request which the server does not know ends nothing
// here, so that server/discover (2026-07-28) can be asked for first.
func (s *Server) Discovers() bool { return s.cfg.Transport == StreamableHTTP }
