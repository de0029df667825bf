package provide

import (
	"sync/atomic"
	"time"
)

// AgentClock counts the time for which an endpoint performs verbs for its peers, on the processor
// of the data server.
type AgentClock struct{ spent atomic.Int64 }

// Spent adds the time since a moment.
func (c *AgentClock) Spent(since time.Time) { c.spent.Add(int64(time.Since(since))) }

// AgentTime implements rdma.Agent.
func (c *AgentClock) AgentTime() time.Duration { return time.Duration(c.spent.Load()) }
