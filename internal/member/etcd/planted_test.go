//go:build planted

package etcd_test

import (
	"testing"

	"drtmx/internal/planted"
	"drtmx/internal/planted/plantedtest"
)

// TestPlanted: each of these bugs makes the named test fail for the reason given.
func TestPlanted(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: planted.BlindSwap, Test: "TestConformance/Suite/Swap", Want: "second first map: error <nil>"},
		{Bug: planted.BlindSwap, Test: "TestConformance/Suite/Contenders", Want: "contender|after [0-9]+ changes"},
		{Bug: planted.JoinOver, Test: "TestConformance/Suite/JoinTakesAnIndex", Want: "index of another instance: error <nil>"},
	})
}
