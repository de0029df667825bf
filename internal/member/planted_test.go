//go:build planted

package member_test

import (
	"testing"

	"drtmx/internal/planted"
	"drtmx/internal/planted/plantedtest"
)

// TestPlanted: each of these bugs makes the named test fail for the reason given.
func TestPlanted(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: planted.BlindSwap, Test: "TestConformance/Swap", Want: "second first map: error <nil>"},
		{Bug: planted.BlindSwap, Test: "TestConformance/Contenders", Want: "contender|after [0-9]+ changes"},
		{Bug: planted.JoinOver, Test: "TestConformance/JoinTakesAnIndex", Want: "index of another instance: error <nil>"},
	})
}
