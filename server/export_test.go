package server

// Fence makes a partition one that is no longer served; its memory answers on.
func (s *Server) Fence(part int) { s.parts[part].fence() }
