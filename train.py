import torch, ropeteam_trainer
data = torch.randn(100, 8)
scale = data.std().item()
job = ropeteam_trainer.init()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = job.wrap(model, optimizer, loss=torch.nn.functional.mse_loss)
