package server_test

import (
	"context"
	"sync"

	"drtmx/internal/replica"
)

// memSets holds the sets of copies in sync, as if it were a store that never fails.
type memSets struct {
	mu   sync.Mutex
	of   map[int]replica.Set
	dead map[int]bool // servers whose disk has crashed: what they do has not happened
}

func newMemSets() *memSets { return &memSets{of: map[int]replica.Set{}, dead: map[int]bool{}} }

func (m *memSets) Set(_ context.Context, server int) (replica.Set, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[server], nil
}

func (m *memSets) SwapSet(_ context.Context, server int, from, to replica.Set) (replica.Set, error) {
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
func (m *memSets) die(server int, dead bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead[server] = dead
}
