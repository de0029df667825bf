//go:build planted

package cluster

import (
	"testing"

	"drtmx/internal/planted"
	"drtmx/internal/planted/plantedtest"
)

// TestPlanted: each of these bugs makes the named test fail for the reason given.
func TestPlanted(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: planted.IgnoreIncarnation, Test: "TestClientMeetsARestartedServer", Want: "after its restart: <nil>"},
		{Bug: planted.IgnoreIncarnation, Test: "TestKilledServer", Want: "key [0-9]+: txn: no such row"},
	})
}
