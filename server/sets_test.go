package server_test

import (
	"context"
	"sync"

	"drtmx/internal/placement"
	"drtmx/internal/replica"
)

// memSets holds the sets of copies in sync, as if it were a store that never fails.
type memSets struct {
	mu   sync.Mutex
	of   map[placement.Server]replica.Set
	dead map[placement.Server]bool // servers whose disk has crashed: what they do has not happened
}

func newMemSets() *memSets {
	return &memSets{of: map[placement.Server]replica.Set{}, dead: map[placement.Server]bool{}}
}

func (m *memSets) Set(_ context.Context, server placement.Server) (replica.Set, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[server], nil
}

func (m *memSets) SwapSet(_ context.Context, server placement.Server, from, to replica.Set) (replica.Set, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead[server] {
		return to, nil
	}
	if m.of[server] == from {
		m.of[server] = to
	}
	return m.of[server], nil
}

// die says whether a server's disk has crashed.
func (m *memSets) die(server placement.Server, dead bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead[server] = dead
}
