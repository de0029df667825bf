package xmodel_test

import (
	"fmt"

	"drtmx/index/learned/xmodel"
)

// A server trains and publishes; a client that keeps no translation table reads
// the part it needs.
func Example() {
	fences := []uint64{0, 100, 210, 290, 400, 500, 610, 700}
	router, _ := xmodel.NewRouter(xmodel.Partition(fences, 512))

	trainer, _ := xmodel.NewTrainer(xmodel.Options{Family: xmodel.PLR})
	trainer.Begin(router.Start(0))
	for i, low := range fences {
		trainer.Add(low, uint32(40+i), []uint64{low, low + 50})
	}
	var trained xmodel.SubModel
	quality, _ := trainer.Train(&trained, 1)
	block := trained.AppendTo(nil)
	fmt.Println("wrong first leaves:", quality.FirstLeafWrong)

	var held xmodel.SubModel
	_ = held.DecodeHead(block)
	model := xmodel.NewModel(router)
	model.Swap(0, &held)

	p := model.Lookup(450)
	if p.Knows == xmodel.KnowsLeaf {
		offset, words := held.TTWindow(p.Lo, p.Hi)
		p, _ = held.Resolve(450, p, block[offset:offset+words]) // one small READ
	}
	fmt.Println("leaf:", p.Leaf, "ALN:", p.ALN)
	// Output:
	// wrong first leaves: 0
	// leaf: 4 ALN: 44
}
