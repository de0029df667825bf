package server

import (
	"drtmx/internal/twophase"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// HomeOf is DB.Home for keys that fit their table.
func HomeOf(db *txn.DB, t *tables.Table, key tables.Key) txn.Home {
	h, err := db.Home(t, key)
	if err != nil {
		panic(err)
	}
	return h
}

// LimitTables bounds the tables of the commit protocol of a server that has not
// started. Zero limits keep their defaults.
func (s *Server) LimitTables(l twophase.Limits) {
	l.AskAfter = askAfter
	for _, p := range s.parts {
		if p != nil {
			p.side.machine = twophase.New(p.side.machine.Self(), l)
		}
	}
}

// Fence makes a partition one that is no longer served; its memory answers on.
func (s *Server) Fence(part int) { s.parts[part].fence() }

// InDoubt is the number of transactions prepared here and not decided.
func (s *Server) InDoubt() (n int) {
	for _, p := range s.parts {
		if p != nil {
			p.side.mu.Lock()
			n += p.side.machine.InDoubt()
			p.side.mu.Unlock()
		}
	}
	return n
}

// Parked is the number of requests that have waited for a transaction in doubt.
func (s *Server) Parked() (n int) {
	for _, p := range s.Stats().Partitions {
		n += int(p.Parked)
	}
	return n
}

// anyRole is a peer that may make every request.
var anyRole = rdma.Identity{Role: rdma.RoleServer}
